"""Attention to a window around each token: blocks of a row's places look at themselves and both neighbours.

    block b of c places reads the places from (b - r) c up to (b + r + 1) c,  r = 1

A row of at most four blocks is one block of its own length, r = 0: there the square is no larger.  Within what a block
reads, a mask leaves out what is further away than the window reaches.  So a row of S tokens costs 3 c S, not S^2.

Letters: B batch, S padded length, T real tokens, h heads, n blocks of a row, c places of a block, k = (2 r + 1) c.
"""

from __future__ import annotations

import numpy as np

from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Lookups, Packing

# Queries' heads in blocks, (T h) -> (B n, h, c), and back; keys' and values', (T h) -> (B n, h, k).
SPLIT, MERGE, KEYS = "window.split", "window.merge", "window.keys"
REAL = "window.real"  # (B, n c): where a token is
SIZE, BLOCKS, SIDES = "window.size", "window.blocks", "window.sides"  # c, n and r
LONGEST = "window.longest"  # the longest row that is one block

_LEAST = 32  # places of a block: products of smaller ones are slow
_SQUARE = 4  # blocks: c S k is then 3/4 of S^2, and neighbours are copied thrice


def windows(emit: Emitter, packing: Packing, reach: int) -> Lookups:
    """How tokens attend to those at most ``reach`` places away."""
    op, ints, zero, one = emit.op, emit.ints, packing.zero, packing.one
    size = max(reach, _LEAST)
    block, longest = emit.constant("window.block", size, np.int64), emit.constant(LONGEST, _SQUARE * size, np.int64)
    is_short = op("LessOrEqual", packing.length, longest)
    c = op("Where", is_short, packing.length, block, output=SIZE)
    sides = op("Where", is_short, zero, one, output=SIDES)
    n = op("Div", op("Sub", op("Add", packing.length, c), one), c, output=BLOCKS)
    before = op("Mul", sides, c)
    k = op("Add", c, op("Add", before, before))

    # Each row's places, filled up to whole blocks with its last one.
    filled = op("Range", zero, op("Mul", n, c), one)  # (n c)
    inside, last = op("Less", filled, packing.length), op("Sub", packing.length, one)
    column = op("Clip", filled, zero, last)
    op("Where", inside, op("Gather", packing.real, column, axis=1), zero, output=REAL)  # (B, n c)
    token = op("Gather", op("Reshape", packing.place, packing.shape), column, axis=1)  # (B, n c)
    rows = op("Concat", ints(-1), op("Unsqueeze", c, ints(0)), axis=0)
    split = packing.of_heads(op("Reshape", token, rows), output=SPLIT)

    starts = op("Sub", op("Mul", op("Range", zero, n, one), c), before)
    within = op("Range", zero, k, one)
    seen = op("Add", op("Unsqueeze", starts, ints(1)), within)  # (n, k)
    end = op("Mul", n, c)
    there = op("And", op("GreaterOrEqual", seen, zero), op("Less", seen, end))
    seen = op("Clip", seen, zero, op("Sub", end, one))
    wide = op("Concat", ints(-1), op("Unsqueeze", k, ints(0)), axis=0)
    keys = packing.of_heads(op("Reshape", op("Gather", token, seen, axis=1), wide), output=KEYS)
    there = op("And", there, op("Greater", op("Gather", REAL, seen, axis=1), zero))  # (B, n, k)
    there = op("Unsqueeze", op("Reshape", there, wide), ints(1, 2))  # (B n, 1, 1, k)

    queries = op("Unsqueeze", op("Add", op("Range", zero, c, one), before), ints(1))
    distance = op("Sub", within, queries)  # (c, k)
    furthest, nearest = (
        emit.constant(f"window.{way}", far, np.int64) for way, far in (("on", reach), ("back", -reach))
    )
    near = op("And", op("LessOrEqual", distance, furthest), op("GreaterOrEqual", distance, nearest))
    bias = op("Where", op("And", near, there), "none", "lowest")  # (B n, 1, c, k)

    at = op("Add", op("Mul", packing.row, n), op("Div", packing.column, c))  # (T) into (B n)
    merge = op("Add", op("Unsqueeze", op("Mul", at, "n_heads"), ints(1)), "head_range")  # (T, h) into (B n h)
    place = op("Unsqueeze", op("Mod", packing.column, c), ints(1))
    op("Add", op("Mul", merge, c), place, output=MERGE)
    return Lookups(split, keys, MERGE, bias)

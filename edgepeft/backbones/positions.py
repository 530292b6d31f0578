"""Positions in attention: rotary, a bias for each distance, a window around each token.

**Rotary** (Su et al., 2021, arXiv:2104.09864, equation 34) turns pairs of a head's numbers:

    x' = x cos(p w) + swap(x) sin(p w),  swap(x) = (-x_2, x_1),  w_j = theta^(-2 j / e)

p is a token's place in its row; x_1 and x_2 are the halves of a head in the form of GPT-NeoX, and neighbours in the
paper's own.

**A bias** (Raffel et al., 2020, section 2.1, and their code) is a row of a table: half of the buckets hold one distance
each, the others grow by powers up to the largest.

**A window**: blocks of a row's places look at themselves and both neighbours,

    block b of c places reads the places from (b - r) c up to (b + r + 1) c,  r = 1

A row of at most four blocks is one block of its own length, r = 0: there the square is no larger.  Within what a block
reads, a mask leaves out what is further away than the window reaches.  So a row of S tokens costs 3 c S, not S^2.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, e = d / h, n blocks of a row, c places of a block,
k = (2 r + 1) c.
"""

import math
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Lookups, Packing


def frequencies(theta: float, width: int) -> NDArray[np.float32]:
    """w, (e / 2): to the bit what PyTorch's float32 gives, for at position 8,000 its last digit turns visibly."""
    powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1) / np.power(theta, powers.astype(np.float64)).astype(np.float32)


class Rotary:
    """Turns queries, which it scales too, and keys of packed tokens, by one ``theta``.

    Pairs are ``neighbours``, by angles in float64 as in RoFormer's code, or of halves, by those in float32.
    """

    def __init__(self, emit: Emitter, packing: Packing, theta: float, *, neighbours: bool = False) -> None:
        self.emit, self.n_heads, self.width, self._inner = emit, packing.n_heads, emit.arch.hidden_size, int(neighbours)
        op, ints, e = emit.op, emit.ints, self.width // self.n_heads
        kind = TensorProto.DOUBLE if neighbours else TensorProto.FLOAT
        w: NDArray[Any] = np.power(theta, -np.arange(0, e, 2) / e) if neighbours else frequencies(theta, e)
        places = op("Cast", op("Range", packing.zero, packing.length, packing.one), to=kind)
        angles = emit.constant(f"frequencies_{theta:g}", w, w.dtype.type)
        angles = op("Mul", op("Unsqueeze", places, ints(1)), angles)  # (S, e / 2)
        if neighbours:  # ONNX Runtime has no cosine of float64 in 1.24: it is the sine a quarter turn on
            turned = op("Add", angles, emit.constant("quarter_turn", np.pi / 2, np.float64))
            cosine, sine = (op("Cast", op("Sin", each), to=TensorProto.FLOAT) for each in (turned, angles))
        else:
            cosine, sine = op("Cos", angles), op("Sin", angles)
        whole = (self._of_both(cosine, cosine), self._of_both(op("Neg", sine), sine))  # (S, e)
        of_tokens = (op("Unsqueeze", op("Gather", table, packing.column), ints(1)) for table in whole)
        # Cosines and sines, (T, 1, e); those of queries divide by the root of e, too.
        self.key = tuple(of_tokens)
        scale = emit.constant("query_scale", e**-0.5, np.float32)
        self.query = tuple(op("Mul", table, scale) for table in self.key)

    def _of_both(self, one: str, other: str) -> str:
        """Join the factors of both halves, or neighbours: (S, e / 2) twice -> (S, e)."""
        op, ints = self.emit.op, self.emit.ints
        if not self._inner:
            return op("Concat", one, other, axis=1)
        pairs = op("Concat", *(op("Unsqueeze", part, ints(2)) for part in (one, other)), axis=2)
        return op("Reshape", pairs, ints(-1, self.width // self.n_heads))

    def turned(self, value: str, cosine: str, sine: str) -> str:
        """(T, d) -> (T, d)."""
        op, ints, e = self.emit.op, self.emit.ints, self.width // self.n_heads
        heads = ints(-1, self.n_heads, e)
        parts = (e // 2, 2) if self._inner else (2, e // 2)
        pairs = op("Reshape", value, ints(-1, self.n_heads, *parts))
        swapped = op("Reshape", op("Gather", pairs, ints(1, 0), axis=2 + self._inner), heads)  # the sine has its sign
        kept = op("Mul", op("Reshape", value, heads), cosine)
        return op("Reshape", op("Add", kept, op("Mul", swapped, sine)), ints(-1, self.width))


def buckets(n_buckets: int, largest: int, *, both_ways: bool) -> NDArray[np.int64]:
    """The bucket of each distance from ``-largest`` (where ``both_ways``, else 0) to ``largest``.

    One way, a distance is how far back; both ways, how far on, with buckets of its own for what comes later.  Float32,
    as in the code that the weights were learnt with.
    """
    if both_ways:
        half = buckets(n_buckets // 2, largest, both_ways=False)
        return np.concatenate([half[:0:-1], half[:1], half[1:] + n_buckets // 2])
    distances, exact = np.arange(largest + 1), n_buckets // 2
    grown = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    grown = grown / np.float32(math.log(largest / exact)) * np.float32(n_buckets - exact)
    far = np.minimum(exact + grown.astype(np.int64), n_buckets - 1)
    return np.where(distances < exact, distances, far).astype(np.int64)


def distance_bias(emit: Emitter, table: str, distances: str, largest: int, *, both_ways: bool, output: str = "") -> str:
    """Attention's bias for distances, int64 (rows, columns) -> (h, rows, columns), by a weight [buckets, h]."""
    op, stem = emit.op, table.partition(".")[0]
    found = buckets(emit.shapes[table][0], largest, both_ways=both_ways)
    # Bytes: as large as weights are, a constant would be stored among these, and must not move them from 64 bytes.
    bucket = op("Cast", emit.constant(f"{stem}.buckets", found, np.uint8), to=TensorProto.INT64)
    by_distance = op("Gather", emit.weight(table), bucket)
    furthest = emit.constant("furthest", largest, np.int64)
    if both_ways:
        distances = op("Add", distances, furthest)
    zero, last = emit.constant("zero", 0, np.int64), emit.constant(f"{stem}.last", len(found) - 1, np.int64)
    place = op("Clip", distances, zero, last)
    return op("Gather", op("Transpose", by_distance, perm=[1, 0]), place, axis=1, output=output)


LONGER = ".with_distances"  # how the name of a value ends that has R rows of distances behind those of tokens


class Window(StrEnum):
    """Values of a graph that has windows: see ``edgepeft.graph.gradient``."""

    SPLIT = "window.split"  # queries' heads in blocks, (T h) -> (B n, h, c)
    MERGE = "window.merge"  # and back
    KEYS = "window.keys"  # keys' and values', (T h) -> (B n, h, k)
    REAL = "window.real"  # (B, n c): where a token is
    SIZE = "window.size"  # c
    BLOCKS = "window.blocks"  # n
    SIDES = "window.sides"  # r
    LONGEST = "window.longest"  # the longest row that is one block


_MIN = 32  # places of a block: products of smaller ones are slow
_SQUARE = 4  # blocks: c S k is then 3/4 of S^2, and neighbours are copied thrice


def windows(emit: Emitter, packing: Packing, reach: int) -> Lookups:
    """How tokens attend to those at most ``reach`` places away."""
    op, ints, zero, one = emit.op, emit.ints, packing.zero, packing.one
    size = max(reach, _MIN)
    block = emit.constant("window.block", size, np.int64)
    longest = emit.constant(Window.LONGEST, _SQUARE * size, np.int64)
    is_short = op("LessOrEqual", packing.length, longest)
    c = op("Where", is_short, packing.length, block, output=Window.SIZE)
    sides = op("Where", is_short, zero, one, output=Window.SIDES)
    n = op("Div", op("Sub", op("Add", packing.length, c), one), c, output=Window.BLOCKS)
    before = op("Mul", sides, c)
    k = op("Add", c, op("Add", before, before))

    # Each row's places, filled up to whole blocks with its last one.
    filled = op("Range", zero, op("Mul", n, c), one)  # (n c)
    inside, last = op("Less", filled, packing.length), op("Sub", packing.length, one)
    column = op("Clip", filled, zero, last)
    op("Where", inside, op("Gather", packing.real, column, axis=1), zero, output=Window.REAL)  # (B, n c)
    token = op("Gather", op("Reshape", packing.place, packing.shape), column, axis=1)  # (B, n c)
    rows = op("Concat", ints(-1), op("Unsqueeze", c, ints(0)), axis=0)
    split = packing.of_heads(op("Reshape", token, rows), output=Window.SPLIT)

    starts = op("Sub", op("Mul", op("Range", zero, n, one), c), before)
    within = op("Range", zero, k, one)
    seen = op("Add", op("Unsqueeze", starts, ints(1)), within)  # (n, k)
    end = op("Mul", n, c)
    there = op("And", op("GreaterOrEqual", seen, zero), op("Less", seen, end))
    seen = op("Clip", seen, zero, op("Sub", end, one))
    wide = op("Concat", ints(-1), op("Unsqueeze", k, ints(0)), axis=0)
    keys = packing.of_heads(op("Reshape", op("Gather", token, seen, axis=1), wide), output=Window.KEYS)
    there = op("And", there, op("Greater", op("Gather", Window.REAL, seen, axis=1), zero))  # (B, n, k)
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
    op("Add", op("Mul", merge, c), place, output=Window.MERGE)
    return Lookups(split, keys, Window.MERGE, bias)

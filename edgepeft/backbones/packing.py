"""Packed tokens, their attention, and positions in it.

Padding is dropped after the token ids, so every projection runs on [tokens, d].  Only attention sees [batch, heads,
seq, seq]: gathers of head-sized rows unpack and split heads in one copy, so a batch without padding costs no more than
the usual transposes.

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
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, Attention, PackedIndex, Role
from edgepeft.backbones.config import rope_of
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.pooling import EMBEDDINGS
from edgepeft.common.errors import UsageError

# Two lookups that undo each other, (T h) -> (B, h, S) and back, and where a token is: see ``edgepeft.graph.gradient``.
SPLIT, MERGE, REAL = "heads.split", "heads.merge", "token.real"
# Each token's place in the padded batch and in its row, and the number of heads: see ``edgepeft.graph.one_row``.
INDEX, COLUMN, N_HEADS = "token.index", "token.column", "n_heads"
LAST = "row.last"  # each row's last among the packed tokens, where something reads it
# How ``Packing.attend`` gets from the merged heads up to its query, by each node's first input: see
# ``edgepeft.graph.prune_last_layer``.
ATTENTION = ("Gather", "Reshape", "MatMul", "Softmax", "Add", "MatMul", "Gather", "Reshape")
MERGED = ("Reshape", *ATTENTION[:3])  # how it gives (T, d) of what each head read


class Lookups(NamedTuple):
    """Which tokens attend to which, by their heads' indices."""

    queries: str
    keys: str  # of values too
    merge: str  # the way back
    bias: str  # of what is looked up but not seen


class Packing:
    """Which tokens of a batch are real, where each came from, and what moves values between both forms.

    Emits its nodes when it is made, of the values ``ids`` and ``mask``, (B, S).
    ``column`` (T) is each token's place in its padded row; ``zero`` and ``one`` are int64 constants.
    """

    def __init__(self, emit: Emitter, ids: str = "input_ids", mask: str = "attention_mask") -> None:
        self.emit, self.n_heads = emit, emit.arch.n_heads
        op, ints = emit.op, emit.ints
        heads = emit.constant("head_range", np.arange(self.n_heads), np.int64)  # (h)
        count = emit.constant(N_HEADS, self.n_heads, np.int64)
        zero, one = emit.constant("zero", 0, np.int64), emit.constant("one", 1, np.int64)
        self.zero, self.one = zero, one

        self.shape = op("Shape", ids)
        self.batch, self.length = op("Gather", self.shape, zero), op("Gather", self.shape, one)
        length = self.length
        mask = op("Cast", mask, to=TensorProto.BOOL)
        self.real = op("Cast", mask, to=TensorProto.INT64, output=REAL)  # (B, S) of 0, 1
        flat = op("Reshape", self.real, ints(-1))  # (B S)
        self.index = op("Reshape", op("NonZero", flat), ints(-1), output=INDEX)  # (T) into (B S)
        self.row = op("Div", self.index, length, output=PACKED_INDICES[PackedIndex.ROW])  # (T)
        self.column = op("Mod", self.index, length, output=COLUMN)  # (T)
        # For each padded place the packed token that stands there; padding borrows a neighbour.
        self.place = op("Max", op("Sub", op("CumSum", flat, zero), one), zero)  # (B S)
        self.counts = op("ReduceSum", self.real, ints(1), keepdims=0)  # (B)
        self.starts = op(
            "CumSum", self.counts, zero, exclusive=1, output=PACKED_INDICES[PackedIndex.FIRST_TOKEN]
        )  # (B)
        tokens = op("Range", zero, op("Squeeze", op("Shape", self.index)), one)
        op("Sub", tokens, op("Gather", self.starts, self.row), output=PACKED_INDICES[PackedIndex.POSITION])  # (T)

        self.split = self.of_heads(op("Reshape", self.place, self.shape), output=SPLIT)  # (B, h, S) into (T h)
        merge = op("Add", op("Unsqueeze", op("Mul", self.row, count), ints(1)), heads)  # (T, h)
        column = op("Unsqueeze", self.column, ints(1))
        self.merge = op("Add", op("Mul", merge, length), column, output=MERGE)  # (T, h) into (B h S)
        lowest = emit.constant("lowest", np.finfo(np.float32).min, np.float32)
        none = emit.constant("none", 0.0, np.float32)
        bias = op("Where", op("Cast", self.real, to=TensorProto.BOOL), none, lowest)
        self.mask_bias = op("Unsqueeze", bias, ints(1, 2), output=Role.ATTENTION_BIAS.value)  # (B, 1, 1, S)

    def packed(self, value: str, output: str = "") -> str:
        """(B, S) -> (T)."""
        return self.emit.op("Gather", self.emit.op("Reshape", value, self.emit.ints(-1)), self.index, output=output)

    def distances(self) -> str:
        """(S, S): how far on the places of a padded row are from each of them."""
        op = self.emit.op
        columns = op("Range", self.zero, self.length, self.one)
        return op("Sub", *(op("Unsqueeze", columns, self.emit.ints(axis)) for axis in (0, 1)))

    def of_heads(self, tokens: str, output: str) -> str:
        """Packed tokens, (., places) into (T) -> their heads, (., h, places) into (T h)."""
        op, ints = self.emit.op, self.emit.ints
        first = op("Unsqueeze", op("Mul", tokens, N_HEADS), ints(1))
        return op("Add", first, op("Unsqueeze", "head_range", ints(1)), output=output)

    def attend(
        self,
        query: str,
        key: str,
        value: str,
        width: int,
        output: str,
        *,
        bias: str = "",
        within: Lookups | None = None,
        heads: str = "",
    ) -> str:
        """Dot products over each row's own tokens: all (T, d), the query scaled already; ``width`` is d.

        ``bias`` is added to them, (B, h, S, S); where none is given, what leaves padding out.  ``within`` says which
        tokens see which, all of a row where it is not given.  ``heads`` is what the names of the split keys and values
        begin with, if they are to have any.
        """
        op, ints, e = self.emit.op, self.emit.ints, width // self.n_heads
        within = within or Lookups(self.split, self.split, self.merge, self.mask_bias)
        query = self.split_heads(query, width, within.queries)
        names = [heads and heads + role for role in (Role.KEY_HEADS, Role.VALUE_HEADS)]
        key, value = (self.split_heads(x, width, within.keys, n) for x, n in zip((key, value), names, strict=True))
        key = op("Transpose", key, perm=[0, 1, 3, 2])  # (B, h, e, S)
        scores = op("Add", op("MatMul", query, key), bias or within.bias)  # (B, h, S, S)
        context = op("MatMul", op("Softmax", scores, axis=-1), value)
        merged = op("Gather", op("Reshape", context, ints(-1, e)), within.merge)  # (T, h, e)
        return op("Reshape", merged, ints(-1, width), output=output)

    def split_heads(self, value: str, width: int, places: str = "", output: str = "") -> str:
        """(T, d) -> (B, h, S, e) in one copy, or by other ``places`` than a row's; ``width`` is d."""
        rows = self.emit.op("Reshape", value, self.emit.ints(-1, width // self.n_heads))
        return self.emit.op("Gather", rows, places or self.split, output=output)

    def ends(self) -> str:
        """int64 (B): each row's last among the packed tokens."""
        return self.emit.op("Sub", self.emit.op("Add", self.starts, self.counts), self.one, output=LAST)

    def outputs(self, hidden: str, width: int, *further: str) -> list[onnx.ValueInfoProto]:
        """The graph's outputs of the last layer's (T, d): last_hidden_state (B, S, d), pooled values (B, d)."""
        op, ints = self.emit.op, self.emit.ints
        pooled = [pooling.emit(self, hidden) for pooling in EMBEDDINGS]
        real = op("Unsqueeze", op("Cast", self.real, to=TensorProto.FLOAT), ints(2))  # (B, S, 1)
        padded = op("Gather", hidden, op("Reshape", self.place, self.shape))  # (B, S, d)
        op("Mul", padded, real, output="last_hidden_state")  # zero where there is no token
        shapes: dict[str, tuple[str | int, ...]] = {"last_hidden_state": ("batch", "sequence", width)}
        shapes |= dict.fromkeys((*pooled, *further), ("batch", width))
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def frequencies(theta: float, width: int) -> NDArray[np.float32]:
    """w, (e / 2): to the bit what PyTorch's float32 gives, for at position 8,000 its last digit turns visibly."""
    powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1) / np.power(theta, powers.astype(np.float64)).astype(np.float32)


def rotation(config: Mapping[str, Any], width: int, key: str = "rope_theta", kind: str = "") -> Attention:
    """RoPE as transformers' ``rope_type`` default, linear and llama3 have it; key and kind are ``rope_of``'s."""
    rope = rope_of(config, key, kind=kind, instead=10_000.0, scaled=("linear", "llama3"))

    def number(name: str) -> float:
        value = rope.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"the config's RoPE needs {name} as a positive number; found {value!r}.")
        return float(value)

    theta, named = rope["rope_theta"], rope["rope_type"]
    if named == "default":
        return Attention(theta, None)
    w, factor = frequencies(theta, width), np.float32(number("factor"))
    scaled = w / factor
    if named == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise UsageError(f"the config's RoPE has low_freq_factor {low} and high_freq_factor {high}, no greater.")
        before = number("original_max_position_embeddings")
        length = np.float32(2 * math.pi) / w
        smooth = (np.float32(before) / length - np.float32(low)) / np.float32(high - low)
        between = (1 - smooth) * w / factor + smooth * w
        scaled = np.where(length > before / low, scaled, np.where(length < before / high, w, between))
    return Attention(theta, None, tuple(scaled.astype(np.float32).tolist()))


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

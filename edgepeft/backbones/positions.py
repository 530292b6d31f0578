"""How attention learns where tokens stand: rotary positions, a bias for each distance, disentangled attention.

**Rotary** (Su et al., 2021, arXiv:2104.09864, equation 34) turns pairs of a head's numbers:

    x' = x cos(p w) + swap(x) sin(p w),  swap(x) = (-x_2, x_1),  w_j = theta^(-2 j / e)

p is a token's place in its row; x_1 and x_2 are the halves of a head in the form of GPT-NeoX, and neighbours in the
paper's own.

**A bias** (Raffel et al., 2020, section 2.1, and their code) is a row of a table: half of the buckets hold one distance
each, the others grow by powers up to the largest.

**Disentangled** (He et al., 2021, arXiv:2006.03654, equation 4, with the buckets of version 2):

    A_ij = (Q_i K_j + Q_i Kr_b(i - j) + K_j Qr_b(i - j)) / sqrt(3 e)

Kr and Qr are what a layer's own projections make of the table's rows, so that these go through a product with the
tokens, behind them: what is trained at a query or key is trained of distances too.  Of the table the rows that a batch
needs take part.  A query's product with each distance becomes one with each key by a shift of row i by i places.

Letters: B batch, S padded length, T real tokens, R rows of the table that a batch needs, d hidden, h heads, e = d / h,
D = 2 S distances.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.base import Distances
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing


def frequencies(theta: float, width: int) -> NDArray[np.float32]:
    """w, (e / 2): to the bit what PyTorch's float32 gives, for at position 8,000 its last digit turns visibly."""
    powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1) / np.power(theta, powers.astype(np.float64)).astype(np.float32)


class Rotary:
    """Turns queries, which it scales too, and keys of packed tokens, by one ``theta``.

    Pairs are ``neighbours``, by angles in float64 as in RoFormer's code, or of halves, by those in float32.
    """

    def __init__(self, emit: Emitter, packing: Packing, theta: float, width: int, *, neighbours: bool = False) -> None:
        self.emit, self.n_heads, self.width, self._inner = emit, packing.n_heads, width, int(neighbours)
        op, ints, e = emit.op, emit.ints, width // packing.n_heads
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
        self._key = tuple(of_tokens)  # (T, 1, e)
        scale = emit.constant("query_scale", e**-0.5, np.float32)
        self._query = tuple(op("Mul", table, scale) for table in self._key)

    def _of_both(self, one: str, other: str) -> str:
        """What each half, or neighbour, is multiplied by: (S, e / 2) twice -> (S, e)."""
        op, ints = self.emit.op, self.emit.ints
        if not self._inner:
            return op("Concat", one, other, axis=1)
        pairs = op("Concat", *(op("Unsqueeze", part, ints(2)) for part in (one, other)), axis=2)
        return op("Reshape", pairs, ints(-1, self.width // self.n_heads))

    def query(self, value: str) -> str:
        """(T, d) -> (T, d), divided by the root of e."""
        return self._turned(value, *self._query)

    def key(self, value: str) -> str:
        """(T, d) -> (T, d)."""
        return self._turned(value, *self._key)

    def _turned(self, value: str, cosine: str, sine: str) -> str:
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


def rows_of_distances(span: int, furthest: int) -> NDArray[np.int64]:
    """How many rows of the table the distances 1 to ``furthest`` are from that of 0; half of ``span`` has each its own.

    Float32, as in the code that the weights were learnt with.
    """
    distances, middle = np.arange(1, furthest + 1), span // 2
    grown = np.log(np.maximum(distances, middle).astype(np.float32) / np.float32(middle))
    grown = np.ceil(grown / np.float32(math.log((furthest - 1) / middle)) * np.float32(middle - 1))
    return np.where(distances <= middle, distances, grown.astype(np.int64) + middle)


class Disentangled:
    """The attention of one model; ``table`` is the value [2 span, d] of all rows, ``width`` is d."""

    def __init__(self, emit: Emitter, packing: Packing, table: str, distances: Distances, width: int) -> None:
        self.emit, self.packing, self.width = emit, packing, width
        op, ints = emit.op, emit.ints
        columns = op("Range", packing.zero, op("Add", packing.length, packing.length), packing.one)  # (D)
        ahead = op("Sub", columns, op("Sub", packing.length, packing.one))  # from 1 - S to S
        self.of_keys = self._rows(ahead, distances)
        self.of_queries = self._rows(op("Neg", ahead), distances)
        last, end = ints(-1), ints(np.iinfo(np.int64).max)
        first = op("Slice", self.of_queries, last, end, ints(0))  # the row of -S; that of S is the last needed
        beyond = op("Add", op("Slice", self.of_keys, last, end, ints(0)), packing.one)
        self.needed = op("Slice", table, first, beyond, ints(0))  # (R, d)
        self.of_keys, self.of_queries = (op("Sub", rows, first) for rows in (self.of_keys, self.of_queries))
        self.tokens, self.end = op("Shape", packing.index), end
        length = op("Unsqueeze", packing.length, ints(0))
        wide = op("Sub", op("Add", length, length), ints(1))  # D - 1
        before = op("Sub", length, ints(1))
        self._shift = (before, op("Add", before, op("Mul", length, wide)))
        self._rows_of_shift, self._length = op("Concat", ints(0, 0), length, wide, axis=0), length

    def _rows(self, distances: str, known: Distances) -> str:
        """int64 (D): the table's row of each distance."""
        op, constant = self.emit.op, self.emit.constant
        far = op("Max", distances, op("Neg", distances))
        if known.by_powers:
            rows = rows_of_distances(known.span, known.furthest)
            rows = np.pad(rows - 1, (0, -len(rows) % 64), mode="edge")  # a constant must not move weights from 64 bytes
            half = constant("distances.rows", rows, np.uint8 if rows.max() < 256 else np.uint16)
            one, furthest = self.packing.one, constant("furthest", known.furthest, np.int64)
            place = op("Sub", op("Clip", far, one, furthest), one)
            far = op("Add", op("Cast", op("Gather", half, place), to=TensorProto.INT64), one)
        side = op("Clip", distances, constant("minus_one", -1, np.int64), self.packing.one)
        row = op("Add", op("Mul", side, far), constant("span", known.span, np.int64))
        return op("Clip", row, self.packing.zero, constant("last_row", 2 * known.span - 1, np.int64))

    def reads(self, hidden: str, output: str) -> str:
        """What queries and keys are made of: (T, d) -> (T + R, d)."""
        return self.emit.op("Concat", hidden, self.needed, axis=0, output=output)

    def attend(self, query: str, key: str, value: str, of_distances: tuple[str, str], output: str) -> str:
        """(T, d) three times, and (R, d) of query and key -> (T, d); queries are scaled already."""
        op, packing, width = self.emit.op, self.packing, self.width
        of_query, of_key = of_distances
        heads = (packing.split_heads(each, width) for each in (query, key))  # (B, h, S, e)
        distances = (self._by_distance(of_key, self.of_queries), self._by_distance(of_query, self.of_keys))
        to_keys, to_queries = (self._shifted(op("MatMul", *pair)) for pair in zip(heads, distances, strict=True))
        both = op("Add", to_keys, op("Transpose", to_queries, perm=[0, 1, 3, 2]))
        return packing.attend(query, key, value, width, output, bias=op("Add", both, packing.mask_bias))

    def parts(self, whole: str) -> tuple[str, str]:
        """What ``reads`` joined: (T + R, d) -> (T, d), (R, d)."""
        op, ints = self.emit.op, self.emit.ints
        return op("Slice", whole, ints(0), self.tokens, ints(0)), op("Slice", whole, self.tokens, self.end, ints(0))

    def _by_distance(self, rows: str, places: str) -> str:
        """(R, d) -> (h, e, D)."""
        op, h = self.emit.op, self.packing.n_heads
        heads = op("Reshape", op("Gather", rows, places), self.emit.ints(-1, h, self.width // h))
        return op("Transpose", heads, perm=[1, 2, 0])

    def _shifted(self, products: str) -> str:
        """(B, h, S, D) -> (B, h, S, S): row i from its column S - 1 - i on."""
        op, ints = self.emit.op, self.emit.ints
        flat = op("Slice", op("Reshape", products, ints(0, 0, -1)), *self._shift, ints(2))
        return op("Slice", op("Reshape", flat, self._rows_of_shift), ints(0), self._length, ints(3))

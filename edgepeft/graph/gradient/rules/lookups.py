"""Rows that are looked up.  The gradient of a row is the sum over its places.

The sum is a product with the matrix of who looks up the same row: ScatterND that adds loses terms where two threads
meet in one row (ONNX Runtime 1.31, 8 threads), and ScatterElements is 30 times slower.  Where the graph itself undoes
a lookup by another one, that one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgepeft.backbones.packing import MERGE, REAL, SPLIT
from edgepeft.graph.gradient.rule import Gradients, Rule, Visit
from edgepeft.graph.gradient.tape import Extent

__all__ = ["RULES"]

# Rows of a table that are few beside its lookups, such as the distances of all pairs of tokens: the matrix of which row
# is looked up where is smaller then than that of which two places look up the same.
_SMALL = 300


def _gather(at: Visit) -> Gradients:
    index, (axis,) = at.node.input[1], at.axes(int(at.attributes.get("axis", 0)))
    if index in (SPLIT, MERGE):
        yield 0, _moved_back(at, index)
    elif (order := _order(at, index, axis)) is not None:
        yield 0, at.op("Gather", at.dy, at.tape.ints(*np.argsort(order).tolist()), axis=axis)
    else:
        yield 0, _scattered(at, index, axis)


def _order(at: Visit, index: str, axis: int) -> NDArray[np.int64] | None:
    """In which order it takes all that an axis has, each once; None where it does not."""
    known, extent = at.tape.value(index), at.tape.extents(at.x)[axis]
    if known is None or known.ndim != 1 or {*extent} != {len(known)}:
        return None
    return known if sorted(known.tolist()) == list(range(len(known))) else None


def _gather_nd(at: Visit) -> Gradients:
    index = at.node.input[1]
    if at.attributes.get("batch_dims", 0) or set(at.tape.extents(index)[-1]) != {1}:
        raise at.refusal("by several axes")
    yield 0, _scattered(at, at.op("Squeeze", index, at.tape.ints(-1)), 0)


def _moved_back(at: Visit, index: str) -> str:
    """Between packed tokens and heads: what stands at padding has no gradient, for no token attends to it."""
    rows = at.op("Reshape", at.dy, at.tape.ints(-1, at.tape.extents(at.y)[-1][0]))
    moved = at.op("Gather", rows, _merge(at) if index == SPLIT else SPLIT)
    if index == MERGE:
        real = at.op("Cast", REAL, to=at.tape.kind(at.y))  # (B, S)
        moved = at.op("Mul", moved, at.op("Unsqueeze", real, at.tape.ints(1, 3)))  # (B, h, S, e)
    return at.tape.reshaped(moved, at.x)


def _merge(at: Visit) -> str:
    """``MERGE``, made anew where no attention has the queries of all tokens: (T, h) into (B h S)."""
    if at.tape.has(MERGE):
        return MERGE
    op, ints = at.op, at.tape.ints
    n_heads = at.tape.extents(SPLIT)[1][0]
    heads = at.tape.constant(range(n_heads), TensorProto.INT64)
    length = op("Shape", REAL, start=1, end=2)
    index = op("Reshape", op("NonZero", op("Reshape", REAL, ints(-1))), ints(-1, 1))  # (T, 1) into (B S)
    row = op("Mul", op("Div", index, length), ints(n_heads))
    return op("Add", op("Mul", op("Add", row, heads), length), op("Mod", index, length))


def _scattered(at: Visit, index: str, axis: int) -> str:
    """Zeros in the shape of the data, with the sums where rows were taken along ``axis``."""
    tape, op = at.tape, at.op
    whole = tape.extents(at.x)
    others = [*range(axis), *range(axis + 1, len(whole))]
    width = math.prod(whole[other][0] for other in others)
    if any(len(set(whole[other])) > 1 for other in others):
        raise at.refusal("of rows whose extents follow from the batch")
    rank = tape.rank(at.y) - len(others)  # of the index
    front = list(range(axis, axis + rank))
    rows = op("Transpose", at.dy, perm=[*front, *range(axis), *range(axis + rank, tape.rank(at.y))]) if axis else at.dy
    flat = op("Reshape", index, tape.ints(-1))  # (n)
    rows = op("Reshape", rows, op("Concat", op("Shape", flat), tape.ints(width), axis=0))  # (n, width)
    count = tape.shape(whole[axis], of=at.x) if axis == 0 else tape.ints(whole[axis][0])
    one_sign = op("Mod", flat, count)  # an index may count from the end
    shape = [whole[axis], *(whole[other] for other in others)]
    sums = (
        _few(at, one_sign, rows, whole[axis][0])
        if _is_small(whole[axis])
        else _many(at, one_sign, rows, (count, width))
    )
    result = op("Reshape", sums, tape.shape(*shape, of=at.x))
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(whole))]
    return op("Transpose", result, perm=back) if axis else result


def _is_small(extent: Extent) -> bool:
    return len(set(extent)) == 1 and extent[0] <= _SMALL


def _few(at: Visit, index: str, rows: str, count: int) -> str:
    """[count, width]: of ``rows`` (n, width) the sums by what each was looked up for."""
    places = at.tape.constant(np.arange(count)[:, None], TensorProto.INT64)
    looked_up = at.op("Equal", places, at.op("Unsqueeze", index, at.tape.ints(0)))  # (count, n)
    return at.op("MatMul", at.op("Cast", looked_up, to=at.tape.kind(at.y)), rows)


def _many(at: Visit, index: str, rows: str, shape: tuple[str, int]) -> str:
    """The same for tables of many rows, or of a number that follows from the batch."""
    tape, op = at.tape, at.op
    count, width = shape
    same = op("Equal", op("Unsqueeze", index, tape.ints(0)), op("Unsqueeze", index, tape.ints(1)))
    sums = op("MatMul", op("Cast", same, to=tape.kind(at.y)), rows)
    zero = helper.make_tensor("zero", tape.kind(at.y), [1], [0.0])
    zeros = op("ConstantOfShape", op("Concat", count, tape.ints(width), axis=0), value=zero)
    # Places of one row all bring the same sum.
    return op("ScatterND", zeros, op("Unsqueeze", index, tape.ints(1)), sums)


RULES: Mapping[str, Rule] = {"Gather": _gather, "GatherND": _gather_nd}

"""Rows that are looked up.  The gradient of a row is the sum over its places.

The sum is a product with the matrix of who looks up the same row: ScatterND that adds loses terms where two threads
meet in one row (ONNX Runtime 1.31, 8 threads), and ScatterElements is 30 times slower.  Where the graph itself undoes
a lookup by another one, that one is taken; what windows look up several times is summed over those.
"""

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgepeft.backbones.packing import MERGE, REAL, SPLIT, Window
from edgepeft.graph.gradient.rule import Gradients, Visit, is_fixed, rule_of

# Rows of a table that are few beside its lookups, such as the distances of all pairs of tokens: the matrix of which row
# is looked up where is smaller then than that of which two places look up the same.
_SMALL = 300


@rule_of("Gather")
def _gather(at: Visit) -> Gradients:
    index, (axis,) = at.node.input[1], at.axes(int(at.attributes.get("axis", 0)))
    if index in (SPLIT, Window.SPLIT):
        # To packed tokens: what stands at padding has no gradient, for no token attends to it.
        merge = _merge(at) if index == SPLIT else Window.MERGE
        yield 0, at.tape.reshaped(at.op("Gather", _rows(at), merge), at.x)
    elif index == MERGE:
        yield 0, _to_heads(at, SPLIT, REAL)
    elif index == Window.MERGE:
        size = at.op("Unsqueeze", Window.SIZE, at.tape.ints(0))
        real = at.op("Reshape", Window.REAL, at.op("Concat", at.tape.ints(-1), size, axis=0))  # (B n, c)
        yield 0, _to_heads(at, Window.SPLIT, real)
    elif index == Window.KEYS:
        yield 0, _from_windows(at)
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


@rule_of("GatherND")
def _gather_nd(at: Visit) -> Gradients:
    index = at.node.input[1]
    if at.attributes.get("batch_dims", 0) or set(at.tape.extents(index)[-1]) != {1}:
        raise at.refusal("by several axes")
    yield 0, _scattered(at, at.op("Squeeze", index, at.tape.ints(-1)), 0)


def _rows(at: Visit) -> str:
    """The gradient as a matrix."""
    return at.op("Reshape", at.dy, at.tape.ints(-1, at.tape.extents(at.y)[-1][0]))


def _to_heads(at: Visit, split: str, real: str) -> str:
    """From packed tokens, to nothing where none stands."""
    rows = _rows(at)
    there = at.op("Unsqueeze", at.op("Cast", real, to=at.tape.kind(at.y)), at.tape.ints(1, 3))  # (B, 1, S, 1)
    return at.tape.reshaped(at.op("Mul", at.op("Gather", rows, split), there), at.x)


def _from_windows(at: Visit) -> str:
    """To packed tokens, each read by its own block and those beside it: what all of these bring."""
    op, tape, ints = at.op, at.tape, at.tape.ints
    c, n, sides = Window.SIZE, Window.BLOCKS, Window.SIDES
    h, zero = tape.extents(Window.KEYS)[1][0], tape.constant(0, TensorProto.INT64)
    row, column = _places(at)  # (T, 1)
    one = tape.constant(1, TensorProto.INT64)
    back = op("Range", op("Neg", sides), op("Add", sides, one), one)  # how far each reader stands before: (2 r + 1)
    reader = op("Sub", op("Div", column, c), back)  # (T, 2 r + 1)
    last = op("Sub", n, one)
    there = op("And", op("GreaterOrEqual", reader, zero), op("LessOrEqual", reader, last))
    first = op("Mul", op("Add", op("Mul", row, n), op("Clip", reader, zero, last)), ints(h))
    heads = op("Add", op("Unsqueeze", first, ints(1)), tape.constant(np.arange(h)[:, None], TensorProto.INT64))
    steps = op("Add", back, sides)
    place = op("Add", op("Mod", column, c), op("Mul", steps, c))  # (T, 2 r + 1)
    k = op("Mul", c, op("Add", op("Add", sides, sides), one))
    index = op("Add", op("Mul", heads, k), op("Unsqueeze", place, ints(1)))  # (T, h, 2 r + 1) into (B n h k)
    rows = _rows(at)
    weights = op("Unsqueeze", op("Cast", there, to=tape.kind(at.y)), ints(1, 3))  # (T, 1, 2 r + 1, 1)
    brought = op("Mul", op("Gather", rows, index), weights)
    return tape.reshaped(op("ReduceSum", brought, ints(2), keepdims=0), at.x)


def _places(at: Visit) -> tuple[str, str]:
    """Of each token its row and its column, (T, 1)."""
    op, ints = at.op, at.tape.ints
    length = op("Shape", REAL, start=1, end=2)
    index = op("Reshape", op("NonZero", op("Reshape", REAL, ints(-1))), ints(-1, 1))  # into (B S)
    return op("Div", index, length), op("Mod", index, length)


def _merge(at: Visit) -> str:
    """``MERGE``, made anew where no attention has the queries of all tokens: (T, h) into (B h S)."""
    if any(MERGE in node.output for node in at.tape.graph.node):  # the samples hold what a cut left below, too
        return MERGE
    op, ints = at.op, at.tape.ints
    n_heads = at.tape.extents(SPLIT)[1][0]
    heads = at.tape.constant(range(n_heads), TensorProto.INT64)
    row, column = _places(at)
    first = op("Add", op("Mul", row, ints(n_heads)), heads)
    return op("Add", op("Mul", first, op("Shape", REAL, start=1, end=2)), column)


def _scattered(at: Visit, index: str, axis: int) -> str:
    """Zeros in the shape of the data, with the sums where rows were taken along ``axis``."""
    tape, op = at.tape, at.op
    whole = tape.extents(at.x)
    others = [*range(axis), *range(axis + 1, len(whole))]
    width = math.prod(whole[other][0] for other in others)
    if not all(is_fixed(whole[other]) for other in others):
        raise at.refusal("of rows whose extents follow from the batch")
    rank = tape.rank(at.y) - len(others)  # of the index
    front = list(range(axis, axis + rank))
    rows = op("Transpose", at.dy, perm=[*front, *range(axis), *range(axis + rank, tape.rank(at.y))]) if axis else at.dy
    flat = op("Reshape", index, tape.ints(-1))  # (n)
    rows = op("Reshape", rows, op("Concat", op("Shape", flat), tape.ints(width), axis=0))  # (n, width)
    count = tape.shape(whole[axis], of=at.x) if axis == 0 else tape.ints(whole[axis][0])
    one_sign = op("Mod", flat, count)  # an index may count from the end
    shape = [whole[axis], *(whole[other] for other in others)]
    if is_fixed(whole[axis]) and whole[axis][0] <= _SMALL:
        places = tape.constant(np.arange(whole[axis][0])[:, None], TensorProto.INT64)
        looked_up = op("Equal", places, op("Unsqueeze", one_sign, tape.ints(0)))  # (count, n)
        sums = op("MatMul", op("Cast", looked_up, to=tape.kind(at.y)), rows)
    else:
        across, down = (op("Unsqueeze", one_sign, tape.ints(i)) for i in (0, 1))
        sums = op("MatMul", op("Cast", op("Equal", across, down), to=tape.kind(at.y)), rows)
        zero = helper.make_tensor("zero", tape.kind(at.y), [1], [0.0])
        zeros = op("ConstantOfShape", op("Concat", count, tape.ints(width), axis=0), value=zero)
        sums = op("ScatterND", zeros, down, sums)  # places of one row all bring the same sum
    result = op("Reshape", sums, tape.shape(*shape, of=at.x))
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(whole))]
    return op("Transpose", result, perm=back) if axis else result

"""Operators that move numbers and change none, and sums and maxima over axes."""

import math

import numpy as np
from onnx import TensorProto

from edgepeft.graph.gradient.rule import Gradients, Visit, is_fixed, rule_of


@rule_of("Cast")
def _cast(at: Visit) -> Gradients:
    yield 0, at.op("Cast", at.dy, to=at.tape.kind(at.x))


@rule_of("Reshape", "Squeeze", "Unsqueeze")
def _reshape(at: Visit) -> Gradients:
    yield 0, at.tape.reshaped(at.dy, at.x)


@rule_of("Transpose")
def _transpose(at: Visit) -> Gradients:
    order = at.attributes.get("perm", list(reversed(range(at.tape.rank(at.x)))))
    yield 0, at.op("Transpose", at.dy, perm=[int(axis) for axis in np.argsort(order)])


@rule_of("Slice")
def _slice(at: Visit) -> Gradients:
    """Zeros around it, where single steps were taken."""
    extents = at.tape.extents(at.x)
    if {*(at.asked(4, "steps") or ())} - {1}:
        raise at.refusal("by steps")
    computed = any(at.tape.value(bound) is None for bound in at.node.input[1:3])
    axes = at.axes(*(at.asked(3, "axes") or range(1 if computed else len(at.asked(1, "starts") or ()))))
    if computed or not all(is_fixed(extents[axis]) for axis in axes):
        yield 0, _padded(at, axes)
        return
    before, after = [0] * len(extents), [0] * len(extents)
    for axis, start, end in zip(axes, at.asked(1, "starts") or (), at.asked(2, "ends") or (), strict=True):
        size = extents[axis][0]
        first, last, _ = slice(start, end).indices(size)
        before[axis], after[axis] = first, size - max(first, last)
    yield 0, at.op("Pad", at.dy, at.tape.constant([*before, *after], TensorProto.INT64))


def _padded(at: Visit, axes: tuple[int, ...]) -> str:
    """By as many zeros as follow from the batch, along one axis."""
    if len(axes) > 1 or len(at.node.input) < 3:
        raise at.refusal("along several axes that follow from the batch")
    op, ints, (axis,) = at.op, at.tape.ints, axes
    whole, part = (op("Shape", value, start=axis, end=axis + 1) for value in (at.x, at.dy))
    start, zero = at.node.input[1], at.tape.constant(0, TensorProto.INT64)
    before = op("Where", op("Less", start, zero), op("Add", start, whole), start)  # it may count from the end
    before = op("Min", op("Max", before, ints(0)), whole)
    after = op("Sub", op("Sub", whole, before), part)
    return op("Pad", at.dy, op("Concat", before, after, axis=0), "", ints(axis))


@rule_of("Concat")
def _concat(at: Visit) -> Gradients:
    """To each of the joined values its part."""
    op, (axis,) = at.op, at.axes(at.attributes["axis"])
    end = at.tape.ints(0)
    for i, value in enumerate(at.node.input):
        start, end = end, op("Add", end, op("Shape", value, start=axis, end=axis + 1))
        if i in at.wanted:
            yield i, op("Slice", at.dy, start, end, at.tape.ints(axis))


@rule_of("ReduceSum")
def _reduce_sum(at: Visit) -> Gradients:
    yield 0, at.op("Expand", _kept(at, at.dy), at.tape.shape(*at.tape.extents(at.x), of=at.x))


@rule_of("ReduceMean")
def _reduce_mean(at: Visit) -> Gradients:
    """An equal share to each of as many as the axes have, which must be the graph's own."""
    extents = at.tape.extents(at.x)
    averaged = [extents[axis] for axis in _axes(at)]
    if not all(map(is_fixed, averaged)):
        raise at.refusal("over an axis that follows from the batch")
    share = at.op("Mul", _kept(at, at.dy), at.number(1 / math.prod(extent[0] for extent in averaged)))
    yield 0, at.op("Expand", share, at.tape.shape(*extents, of=at.x))


@rule_of("ReduceMax")
def _reduce_max(at: Visit) -> Gradients:
    """Equal shares to all that reach the maximum, as PyTorch's ``amax`` has it."""
    axes = _axes(at)
    if not axes:
        yield 0, at.dy
        return
    reached = at.op("Cast", at.op("Equal", at.x, _kept(at, at.y)), to=at.tape.kind(at.x))
    count = at.op("ReduceSum", reached, at.tape.ints(*axes))
    yield 0, at.op("Mul", reached, at.op("Div", _kept(at, at.dy), count))


def _axes(at: Visit) -> tuple[int, ...]:
    """The axes that are reduced over."""
    asked = at.asked(1, "axes")
    if not asked:
        return () if at.attributes.get("noop_with_empty_axes", 0) else tuple(range(at.tape.rank(at.x)))
    return at.axes(*asked)


def _kept(at: Visit, value: str) -> str:
    """A value of the result's shape, with the axes that were reduced over put back."""
    if at.attributes.get("keepdims", 1) or not (axes := _axes(at)):
        return value
    return at.op("Unsqueeze", value, at.tape.ints(*sorted(axes)))

"""The way back: from a loss to the gradients of what it depends on, by one rule for each operator.

A rule goes from the gradient of a node's result to the gradients of what the node reads.  A product in integers counts
as one operator, ``INTEGER_PRODUCT``: its roundings have no gradient of their own.

Visited is only what lies between the lowest of these tensors and the loss.  A path without a rule would be a gradient
that is wrong in silence, so each one is refused by name.

A ``Tape`` is what rules write on: nodes that are appended to a graph, none of them twice, and the sizes of the forward
values.  Sizes are known from a few sample batches: an extent that is the same in each is the graph's own, any other
follows from the batch.  Two axes that have the same extents in every sample are one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.packing import Window
from edgepeft.common.errors import BundleError
from edgepeft.common.registry import modules_of
from edgepeft.graph.protos import ancestors, attributes, constant, reads, writers
from edgepeft.graph.quantise import integer_products
from edgepeft.graph.shapes import Spec, value_specs
from edgepeft.graph.splice import prompt_in

Extent = tuple[int, ...]  # of one axis, in each sample
_COUNTS = {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
# Of rows; neither counts nor sums nor products recur, nor multiples of them, whatever the length of a prompt: of
# (5, 2, 4) beside the other, a prompt of 1 made rows twice as long as there are rows in both.
_LENGTHS = ((6, 2, 4), (13, 7, 3, 8, 1, 9, 6))
_TARGETS = (13, 17)  # tokens of the longest target, where text is taught
_ROWS, _MAX = (19, 23), (29, 31)  # rows, and token rows of one, where a row is several: shapes alone, not whose
_TEXTS = 37  # more than rows, where each is read in windows


class Tape:
    """A graph that grows.  ``samples`` hold the spec of every value that the graph has now, in each sample batch.

    Methods that append return the name of a value.
    """

    def __init__(self, graph: onnx.GraphProto, samples: Sequence[Mapping[str, Spec]]) -> None:
        self.graph, self._samples = graph, samples
        self._made = {_key(node.op_type, node.input, attributes(node)): node.output[0] for node in graph.node}
        self._constants: dict[tuple[int, bytes, tuple[int, ...]], str] = {}
        self._sources = dict(self._cheap())

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """The value of this node, which is appended unless it is there already."""
        key = _key(op_type, inputs, attributes)
        if key not in self._made:
            name = f"back/{op_type.lower()}_{len(self.graph.node)}"
            self.graph.node.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
            self._made[key] = name
        return self._made[key]

    def constant(self, values: Any, kind: int) -> str:
        """A small initializer of that element type."""
        array = np.asarray(values, helper.tensor_dtype_to_np_dtype(kind))
        key = (kind, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = f"back/constant_{len(self._constants)}"
            self.graph.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 constant, such as axes."""
        return self.constant(values, TensorProto.INT64)

    def number(self, value: float, like: str) -> str:
        """A scalar of the element type that ``like`` has."""
        return self.constant(value, self.kind(like))

    def value(self, name: str) -> NDArray[Any] | None:
        """What a constant of the graph holds; None for any other value."""
        return constant(self.graph, name)

    def kind(self, value: str) -> int:
        """A forward value's element type."""
        return self._samples[0][value].kind

    def extents(self, value: str) -> tuple[Extent, ...]:
        """Extents of a forward value's axes."""
        return tuple(zip(*(sample[value].shape for sample in self._samples), strict=True))

    def rank(self, value: str) -> int:
        """How many axes a forward value has."""
        return len(self._samples[0][value].shape)

    def reshaped(self, value: str, like: str) -> str:
        """``value`` in the shape of the forward value ``like``, which has as many numbers."""
        extents = self.extents(like)
        fixed = [extent[0] if is_fixed(extent) else -1 for extent in extents]
        if fixed.count(-1) <= 1 and 0 not in fixed:
            return self.op("Reshape", value, self.ints(*fixed))
        return self.op("Reshape", value, self.shape(*extents, of=like), allowzero=1)

    def shape(self, *extents: Extent, of: str = "") -> str:
        """int64 [rank]; to ask the forward value ``of`` for an extent keeps it alive, so others are asked first."""
        if all(map(is_fixed, extents)):
            return self.constant([extent[0] for extent in extents], TensorProto.INT64)
        parts = [self._size(extent, of, axis) for axis, extent in enumerate(extents)]
        return self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, extent: Extent, of: str, axis: int) -> str:
        """One extent, int64 [1]."""
        if is_fixed(extent):
            return self.ints(extent[0])
        for source, (value, at) in self._sources.items():
            times, rest = divmod(extent[0], source[0]) if source[0] else (0, 1)
            if not rest and times and all(whole == times * one for whole, one in zip(extent, source, strict=True)):
                size = self.op("Shape", value, start=at, end=at + 1)
                return size if times == 1 else self.op("Mul", size, self.ints(times))
        return self.op("Shape", of, start=axis, end=axis + 1)

    def _cheap(self) -> Iterator[tuple[Extent, tuple[str, int]]]:
        """Extent -> a value that has it, of those that are there all the time or take little: inputs and integers."""
        given = [value.name for value in self.graph.input]
        integers = [n for node in self.graph.node for n in node.output if n and self.kind(n) in _COUNTS]
        for name in reversed([*given, *integers]):  # the first one counts
            for axis, extent in enumerate(self.extents(name)):
                if not is_fixed(extent):
                    yield extent, (name, axis)


def is_fixed(extent: Extent) -> bool:
    """Whether it is the graph's own, the same in each sample."""
    return len(set(extent)) == 1


def _key(op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    values = {n: v.SerializeToString() if isinstance(v, TensorProto) else repr(v) for n, v in attributes.items()}
    return (op_type, *inputs, *sorted(values.items()))


def measured(model: onnx.ModelProto) -> tuple[dict[str, Spec], ...]:
    """The spec of every value, in each sample."""
    rows = zip(_LENGTHS, _TARGETS, _ROWS, _MAX, strict=True)
    samples = [specs_of(model, lengths, *sizes) for lengths, *sizes in rows]
    longest = constant(model.graph, Window.LONGEST)
    if longest is not None:  # else a block of a row would be taken for the row
        samples.append(specs_of(model, (int(longest) + 23, 19), _TARGETS[0] + 10, 37, 41))
    return tuple(samples)


def specs_of(
    model: onnx.ModelProto, lengths: tuple[int, ...], target: int = 0, rows: int | None = None, most: int = 1
) -> dict[str, Spec]:
    """The spec of every value for token rows of these lengths.

    ``target`` is the longest target in tokens; where a row is several token rows, there are ``rows`` of up to ``most``.
    """
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    prompt = prompt_in(model.graph)
    tokens = sum(lengths) + prompt * len(lengths)
    sizes = {"batch": len(lengths), "sequence": max(lengths), "tokens": tokens, "target": target}
    sizes |= {"rows": rows or len(lengths), "most": most, "texts": (rows or len(lengths)) + _TEXTS}
    return value_specs(model, sizes, {"attention_mask": mask})


_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}
INTEGER_PRODUCT = "IntegerProduct"  # of x, an int8 matrix and its scales: see ``edgepeft.graph.quantise``
Backward = Literal["fp32", "int8"]

Gradients: TypeAlias = Iterator[tuple[int, str]]  # (which input of the node, the value that is its gradient)


def differentiate(
    graph: onnx.GraphProto,
    loss: str,
    tensors: Sequence[str],
    samples: Sequence[Mapping[str, Spec]],
    backward: Backward = "int8",
) -> dict[str, str]:
    """Append what computes the gradient of the scalar ``loss`` by each of ``tensors``; tensor -> its gradient's value.

    The nodes stand in an order that can be run, and ``samples`` hold the spec of every value in some batches.
    ``backward`` is the arithmetic of the way back through products in integers.
    """
    tape, known = Tape(graph, samples), rules()
    nodes = _operators(graph, backward)
    live = set(tensors)  # the numbers that depend on them; what is counted or compared has no gradient
    for node in nodes:
        if not live.isdisjoint(reads(node)):
            live.update(name for name in node.output if name and samples[0][name].kind in _FLOATS)
    arrived: dict[str, list[str]] = {loss: [tape.number(1, loss)]}
    for node in reversed(nodes):
        if arrived.keys().isdisjoint(node.output):
            continue
        wanted = frozenset(i for i, name in enumerate(node.input) if name in live)
        if not wanted:
            continue
        y, left = node.output[0], set(wanted)
        if node.op_type not in known or not arrived.keys().isdisjoint(node.output[1:]):
            what = "" if node.op_type not in known else "'s further results"
            raise BundleError(
                f"there is no gradient of {node.op_type}{what} ({node.name or y}), which stands between what is "
                "trained and the loss."
            )
        arrived[y] = [_sum(tape, arrived[y])]
        for position, gradient in known[node.op_type](Visit(tape, node, arrived[y][0], wanted)):
            arrived.setdefault(node.input[position], []).append(gradient)
            left.remove(position)
        if left:
            raise BundleError(f"the rule of {node.op_type} gives no gradient of {node.input[min(left)]}.")
    lost = [name for name in tensors if name not in arrived]
    if lost:
        raise BundleError(f"the loss does not depend on {lost[0]}, which is to be trained.")
    return {name: _sum(tape, arrived[name]) for name in tensors}


def _sum(tape: Tape, gradients: Iterable[str]) -> str:
    """Add the gradients of all ways that a value takes to the loss."""
    return reduce(lambda first, other: tape.op("Add", first, other), gradients)


def _operators(graph: onnx.GraphProto, backward: Backward) -> list[onnx.NodeProto]:
    """The nodes, with one in place of all that make up a product in integers."""
    writer, inner, whole = writers(graph), set[str](), dict[str, onnx.NodeProto]()
    for x, matrix, scale, y, _ in integer_products(graph):
        inner.update(name for node in ancestors([y], writer, {x}) for name in node.output)
        whole[y] = helper.make_node(INTEGER_PRODUCT, [x, matrix, scale], [y], name=y, backward=backward)
    return [whole.get(node.output[0], node) for node in graph.node if not inner.intersection(node.output) - set(whole)]


class Visit:
    """One node on the way back, from its first result y to its inputs, of which x is the first.

    ``dy`` is y's gradient, ``wanted`` the inputs that need one.
    """

    def __init__(self, tape: Tape, node: onnx.NodeProto, dy: str, wanted: frozenset[int]) -> None:
        self.tape, self.node, self.dy, self.wanted = tape, node, dy, wanted
        self.x, self.y, self.op, self.attributes = str(node.input[0]), str(node.output[0]), tape.op, attributes(node)

    def number(self, value: float) -> str:
        """A scalar of the result's element type."""
        return self.tape.number(value, self.y)

    def axes(self, *given: int) -> tuple[int, ...]:
        """Axes of the first input, counted from the front."""
        rank = self.tape.rank(self.x)
        return tuple(axis % rank for axis in given)

    def asked(self, position: int, name: str) -> tuple[int, ...] | None:
        """Numbers that stand in a constant input, or in an attribute of that name; None where there are none."""
        if len(self.node.input) <= position or not self.node.input[position]:
            found = self.attributes.get(name)
            return None if found is None else tuple(found)
        known = self.tape.value(self.node.input[position])
        if known is None:
            raise self.refusal(f"with {name} that are computed")
        return tuple(map(int, known.reshape(-1)))

    def reduced(self, gradient: str, position: int, shape: tuple[Extent, ...] | None = None) -> str:
        """Summed over the axes that the input was repeated along; ``shape`` is the gradient's, if not the result's."""
        whole = self.tape.extents(self.y) if shape is None else shape
        part = self.tape.extents(self.node.input[position])
        lead = len(whole) - len(part)
        ones = tuple(1 for _ in whole[0]) if whole else ()
        odd = [axis for axis, (w, p) in enumerate(zip(whole[lead:], part, strict=True), lead) if w != p]
        if any(part[axis - lead] != ones for axis in odd):
            raise self.refusal(f"whose operand has the extents {part} in a result of {whole}")
        if lead or odd:
            gradient = self.op("ReduceSum", gradient, self.tape.ints(*range(lead), *odd), keepdims=1)
        return self.op("Squeeze", gradient, self.tape.ints(*range(lead))) if lead else gradient

    def refusal(self, what: str) -> BundleError:
        """The error to raise where the rule does not cover the node."""
        return BundleError(f"there is no gradient of {self.node.op_type} {what} ({self.node.name or self.y}).")


Rule = Callable[[Visit], Gradients]
_RULES: dict[str, Rule] = {}


def rules() -> Mapping[str, Rule]:
    """Rule by operator, of all files of ``rules``."""
    list(modules_of("edgepeft.graph.gradient.rules"))  # each registers its own
    return _RULES


def rule_of(*operators: str) -> Callable[[Rule], Rule]:
    """Register the rule of these operators."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register

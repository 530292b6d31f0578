"""The way back: from a loss to the gradients of what it depends on, by one rule for each operator.

A rule goes from the gradient of a node's result to the gradients of what the node reads.  A product in integers counts
as one operator, ``INTEGER_PRODUCT``: its roundings have no gradient of their own.

Visited is only what lies between the lowest of these tensors and the loss.  A path without a rule would be a gradient
that is wrong in silence, so each one is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import onnx
from onnx import TensorProto, helper

from edgepeft.common.errors import BundleError
from edgepeft.common.registry import modules_of
from edgepeft.graph.gradient.tape import Extent, Tape
from edgepeft.graph.protos import ancestors, attributes, reads, writers
from edgepeft.graph.quantise import integer_products
from edgepeft.graph.shapes import Spec

__all__ = ["INTEGER_PRODUCT", "Backward", "Gradients", "Rule", "Visit", "differentiate", "rule_of", "rules", "slope_of"]

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
    live = _live(nodes, tensors, samples[0])
    arrived: dict[str, list[str]] = {loss: [tape.number(1, loss)]}
    for node in reversed(nodes):
        if arrived.keys().isdisjoint(node.output):
            continue
        wanted = frozenset(i for i, name in enumerate(node.input) if name in live)
        if wanted:
            _visit(node, wanted, known, tape, arrived)
    lost = [name for name in tensors if name not in arrived]
    if lost:
        raise BundleError(f"the loss does not depend on {lost[0]}, which is to be trained.")
    return {name: _sum(tape, arrived[name]) for name in tensors}


def _visit(
    node: onnx.NodeProto, wanted: frozenset[int], known: Mapping[str, Rule], tape: Tape, arrived: dict[str, list[str]]
) -> None:
    """Hand the gradient of a node's result on to what it reads."""
    y = node.output[0]
    if node.op_type not in known or not arrived.keys().isdisjoint(node.output[1:]):
        what = "" if node.op_type not in known else "'s further results"
        raise BundleError(
            f"there is no gradient of {node.op_type}{what} ({node.name or y}), which stands between what is trained "
            "and the loss."
        )
    arrived[y] = [_sum(tape, arrived[y])]
    left = set(wanted)
    for position, gradient in known[node.op_type](Visit(tape, node, arrived[y][0], wanted)):
        arrived.setdefault(node.input[position], []).append(gradient)
        left.remove(position)
    if left:
        raise BundleError(f"the rule of {node.op_type} gives no gradient of {node.input[min(left)]}.")


def _sum(tape: Tape, gradients: Iterable[str]) -> str:
    """Of all ways that a value takes to the loss."""
    first, *others = gradients
    for other in others:
        first = tape.op("Add", first, other)
    return first


def _operators(graph: onnx.GraphProto, backward: Backward) -> list[onnx.NodeProto]:
    """The nodes, with one in place of all that make up a product in integers."""
    writer, inner, whole = writers(graph), set[str](), dict[str, onnx.NodeProto]()
    for x, matrix, scale, y, _ in integer_products(graph):
        inner.update(name for node in ancestors([y], writer, {x}) for name in node.output)
        whole[y] = helper.make_node(INTEGER_PRODUCT, [x, matrix, scale], [y], name=y, backward=backward)
    return [whole.get(node.output[0], node) for node in graph.node if not inner.intersection(node.output) - set(whole)]


def _live(nodes: Iterable[onnx.NodeProto], tensors: Iterable[str], specs: Mapping[str, Spec]) -> set[str]:
    """The numbers that depend on the tensors; what is counted or compared has no gradient."""
    live = set(tensors)
    for node in nodes:
        if not live.isdisjoint(reads(node)):
            live.update(name for name in node.output if name and specs[name].kind in _FLOATS)
    return live


@dataclass(frozen=True)
class Visit:
    """One node on the way back.  ``dy`` is the gradient of its first result, ``wanted`` the inputs that need one."""

    tape: Tape
    node: onnx.NodeProto
    dy: str
    wanted: frozenset[int]

    @property
    def x(self) -> str:
        """The first input."""
        return str(self.node.input[0])

    @property
    def y(self) -> str:
        """The first result."""
        return str(self.node.output[0])

    @property
    def op(self) -> Callable[..., str]:
        """``Tape.op``."""
        return self.tape.op

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The node's own."""
        return attributes(self.node)

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
Slope = TypeVar("Slope", bound=Callable[..., str])
_RULES: dict[str, Rule] = {}


def rules() -> Mapping[str, Rule]:
    """Rule by operator, of all files of ``rules``."""
    for _ in modules_of("edgepeft.graph.gradient.rules"):  # each registers its own
        pass
    return _RULES


def rule_of(*operators: str) -> Callable[[Rule], Rule]:
    """Register the rule of these operators."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def slope_of(operator: str) -> Callable[[Slope], Slope]:
    """Register a function of one number by its derivative f'(x): the rule is dy times that."""

    def register(derivative: Slope) -> Slope:
        def rule(at: Visit) -> Gradients:
            yield 0, at.op("Mul", at.dy, derivative(at))

        rule_of(operator)(rule)
        return derivative

    return register

"""The way back: from a loss to the gradients of what it depends on, by one rule for each operator.

A product in integers counts as one operator, ``INTEGER_PRODUCT``: its roundings have no gradient of their own.

Visited is only what lies between the lowest of these tensors and the loss.  A path without a rule would be a gradient
that is wrong in silence, so each one is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from edgepeft.common.errors import BundleError
from edgepeft.graph.gradient.rule import INTEGER_PRODUCT, Backward, Rule, Visit, rules
from edgepeft.graph.gradient.tape import Tape
from edgepeft.graph.protos import ancestors, reads, writers
from edgepeft.graph.quantise import integer_products
from edgepeft.graph.shapes import Spec

__all__ = ["differentiate"]

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}


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

    Raises:
        BundleError: an operator on the way has no rule, or not for how it is used; or the loss does not depend on a
            tensor.
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
    for x, matrix, scale, y in integer_products(graph):
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

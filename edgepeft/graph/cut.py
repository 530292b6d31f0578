"""Pass: a task's model in two, at a value below which it is the bare backbone: what tasks share, and the rest.

Copies its arguments.  Needs a spliced model, whose delta's nodes are called ``delta/...`` and whose placeholders
``prompted/...``; leaves two models that read token ids and mask, the second the value as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import TensorProto, helper

from edgepeft.errors import BundleError
from edgepeft.graph.prune import prune

__all__ = ["above", "below", "untouched"]

_FOREIGN = ("delta/", "prompted/")


def untouched(graph: onnx.GraphProto, values: Sequence[str]) -> int:
    """How many of ``values``, each computed from the one before, are the backbone's own."""
    writer = {name: node for node in graph.node for name in node.output}
    seen: set[str] = set()
    for count, value in enumerate(values):
        if value not in writer or any(node.name.startswith(_FOREIGN) for node in _new_ancestors(value, writer, seen)):
            return count
    return len(values)


def below(model: onnx.ModelProto, value: str) -> onnx.ModelProto:
    """What gives ``value`` [tokens, d], its only output."""
    copy = _copy(model)
    _writer(copy.graph, value)
    del copy.graph.output[:]
    copy.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    prune(copy.graph)
    return copy


def above(model: onnx.ModelProto, value: str, width: int) -> onnx.ModelProto:
    """What is left to do once ``value`` [tokens, width], now an input, is known."""
    copy = _copy(model)
    copy.graph.node.remove(_writer(copy.graph, value))
    copy.graph.input.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, ("tokens", width)))
    prune(copy.graph)
    return copy


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _writer(graph: onnx.GraphProto, value: str) -> onnx.NodeProto:
    node: onnx.NodeProto | None = next((node for node in graph.node if value in node.output), None)
    if node is not None:
        return node
    raise BundleError(f"the graph has no value {value!r}, which the manifest's sites name.")


def _new_ancestors(value: str, writer: dict[str, onnx.NodeProto], seen: set[str]) -> Iterator[onnx.NodeProto]:
    """Every node that ``value`` depends on and that was not seen before."""
    waiting = [value]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in writer:
            continue
        seen.add(name)
        yield writer[name]
        waiting += writer[name].input

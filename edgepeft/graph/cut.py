"""Pass: a model in two, at values that are the bare backbone's: what tasks or epochs share, and the rest.

Copies its arguments.  Leaves two models that read what they need of the inputs, the second the values as well.
``untouched`` needs a spliced model, whose delta's nodes are called ``delta/...``, its placeholders ``prompted/...``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from edgepeft.errors import BundleError
from edgepeft.graph.prune import prune, reads

__all__ = ["above", "below", "untouched_values"]

_FOREIGN = ("delta/", "prompted/")


def untouched_values(graph: onnx.GraphProto, values: Sequence[str]) -> int:
    """How many of ``values``, each computed from the one before, are the backbone's own."""
    writer = {name: node for node in graph.node for name in node.output}
    seen: set[str] = set()
    for count, value in enumerate(values):
        if value not in writer or any(node.name.startswith(_FOREIGN) for node in _new_ancestors(value, writer, seen)):
            return count
    return len(values)


def below(model: onnx.ModelProto, *values: str) -> onnx.ModelProto:
    """What gives ``values``, float32, its only outputs."""
    copy = _copy(model)
    for value in values:
        _writer(copy.graph, value)
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in values)
    _prune(copy.graph)
    return copy


def above(model: onnx.ModelProto, values: Mapping[str, Sequence[str | int]]) -> onnx.ModelProto:
    """What is left to do once ``values``, now inputs of these shapes, are known."""
    copy = _copy(model)
    for value, shape in values.items():
        node = _writer(copy.graph, value)
        # Renamed, not removed: a LayerNormalization has other outputs, which the rest may read.
        node.output[:] = [f"{value}/below" if name == value else name for name in node.output]
        copy.graph.input.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, shape))
    _prune(copy.graph)
    return copy


def _prune(graph: onnx.GraphProto) -> None:
    """Keep what the outputs need, of the inputs too."""
    prune(graph)
    read = {name for node in graph.node for name in reads(node)}
    kept = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in graph.input if i.name in read]
    del graph.input[:]
    graph.input.extend(kept)


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

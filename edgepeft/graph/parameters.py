"""Passes: a spliced task's own values become inputs, so that tasks of one structure share one session.

The structure's bytes depend on nothing else of the task.  Values that follow from the task's own alone (Compacter's
weights from their factors) are computed once and fed too.  Integers and scalars stay: shapes and factors that the
optimiser reads.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgepeft.graph.contract import Contract, all_used, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import labels_name, without_prefix
from edgepeft.graph.protos import attributes, floats, match_chain, remade, values_read, writers

_LABELS = f"delta/{labels_name('')}"
Values = Mapping[str, NDArray[np.generic]]


class StructuredTask(NamedTuple):
    """A task as a structure, which others may have too, and the values that it feeds to it."""

    structure: onnx.ModelProto
    feeds: dict[str, NDArray[np.float32]]


@Contract(requires=[well_formed], ensures=[well_formed, all_used])
def computed_values(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A graph without inputs whose outputs are to be computed once for the task; None where nothing is."""
    own, nodes, rest = _own(model.graph)
    if _changes_the_backbone(model.graph, own, nodes):
        return None
    computed = {name for node in nodes for name in node.output}
    read = {name for node in rest for name in node.input}
    wanted = sorted(computed & (read | {output.name for output in model.graph.output}))
    if not wanted:
        return None
    needed = [tensor for tensor in model.graph.initializer if tensor.name in own]
    outputs = [helper.make_empty_tensor_value_info(name) for name in wanted]
    graph = helper.make_graph(nodes, "computed", [], outputs, needed)
    prune(graph)
    return remade(model, graph)


@Contract(requires=[well_formed], ensures=[well_formed])  # what an unused node reads stays, as in a bare backbone
def make_inputs(model: onnx.ModelProto, computed: Values) -> StructuredTask | None:
    """The structure and its feeds; None for a task that changes matrices of the backbone, which gains nothing.

    ``computed`` holds the outputs of ``computed_values``.
    """
    graph = model.graph
    own, nodes, kept = _own(graph)
    if _changes_the_backbone(graph, own, nodes):
        return None
    read = {name for node in kept for name in node.input} | {output.name for output in graph.output}
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.name in own & read} | dict(computed)
    fed = {name: value for name, value in values.items() if value.dtype == np.float32 and value.ndim}
    rest = [tensor for tensor in graph.initializer if tensor.name not in own]
    rest += [numpy_helper.from_array(value, name) for name, value in values.items() if name not in fed]
    new = helper.make_graph(kept, graph.name, graph.input, graph.output, rest)
    free: dict[tuple[str, int], str] = {}
    # The head's last ``Gemm(_, weight [outputs, d]) + bias [outputs]`` fits any number of outputs.
    head = match_chain(new.output[0].name, writers(new), "Add", "Gemm") if len(new.output) == 1 else []
    if head and attributes(head[1]).get("transB") == 1:
        weight, bias, times = head[1].input[1], head[0].input[1], values_read(new)
        if {weight, bias} <= set(fed) and times[weight] + times[bias] == 2:
            free = {(weight, 0): "outputs", (bias, 0): "outputs"}
    for name in sorted(fed):
        shape = [free.get((name, axis), extent) for axis, extent in enumerate(fed[name].shape)]
        new.input.append(floats(name, shape))
    if free:
        new.output[0].type.tensor_type.shape.dim[1].dim_param = "outputs"
    return StructuredTask(remade(model, new), {name: np.ascontiguousarray(value) for name, value in fed.items()})


@Contract(requires=[well_formed], ensures=[well_formed, all_used])
def feeds_graph(model: onnx.ModelProto, fed: Collection[str], trained: Sequence[str]) -> onnx.ModelProto:
    """A small graph from a task's trained tensors, named as in its delta graph, to what it feeds (``fed``).

    For whoever trains on, and answers by a structure.
    """
    own, nodes, _ = _own(model.graph)
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in own}
    names = {f"delta/{name}": name for name in trained}
    given = [helper.make_node("Identity", [name], [inner], name=inner) for inner, name in names.items()]
    inputs = [floats(name, stored[inner].dims) for inner, name in names.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in sorted(fed)]
    rest = [tensor for name, tensor in stored.items() if name not in names]
    graph = helper.make_graph([*given, *nodes], "feeds", inputs, outputs, rest)
    prune(graph)
    return remade(model, graph)


def _own(graph: onnx.GraphProto) -> tuple[set[str], list[onnx.NodeProto], list[onnx.NodeProto]]:
    """The task's own initializers, the nodes that read nothing else, and all others; labels are of the structure."""
    named = (t.name for t in graph.initializer if not t.name.startswith(_LABELS))
    own = {name for name in named if name.startswith("delta/") or without_prefix(name)[0] == "override"}
    known, nodes, others = set(own), [], []
    for node in graph.node:  # sorted: each stands after those it reads
        ours = node.name.startswith("delta/") or any(name.startswith("delta/") for name in node.output)
        if (node.input or ours) and known.issuperset(node.input) and not any(a.HasField("g") for a in node.attribute):
            known.update(node.output)
            nodes.append(node)
        else:
            others.append(node)
    return own, nodes, others


def _changes_the_backbone(graph: onnx.GraphProto, own: set[str], nodes: Sequence[onnx.NodeProto]) -> bool:
    """Whether matrices of the backbone are replaced, or would be computed from its weights in every run."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    ours = set(own)
    for node in nodes:
        ours.update(node.output)
        if node.op_type in ("Identity", "Cast") and node.input[0] in ranks:
            ranks[node.output[0]] = ranks[node.input[0]]
    replaced = [name for name in ours if without_prefix(name)[0] == "override"]
    if any(name.startswith("delta/generated:") for name in own) or any(ranks.get(name, 2) > 1 for name in replaced):
        return True
    constant = ours | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.input and constant.issuperset(node.input):
            constant.update(node.output)
            if not ours.issuperset(node.input) and not ours.isdisjoint(node.input):
                return True
    return False

"""Passes: what the outputs need, in an order that can be run; parts below and above some values; other names.

Tasks or epochs share what lies below.  Each part keeps the inputs that it reads.
"""

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import (
    Contract,
    all_used,
    closed,
    one_writer,
    ordered,
    plain,
    same_interface,
    same_operators,
    values_stay,
    well_formed,
)
from edgepeft.graph.protos import ancestors, copied, floats, reads, replace, subgraphs, values_read, writers


@Contract(requires=[one_writer], ensures=[one_writer, ordered, all_used], keeps=[same_interface], mutates=True)
def prune(graph: onnx.GraphProto) -> None:
    """Drop unreachable nodes and initializers and sort the rest."""
    writer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    wanted: dict[int, set[int]] = {}
    frontier = [writer[output.name] for output in graph.output if output.name in writer]
    while frontier:
        index = frontier.pop()
        if index in wanted:
            continue
        wanted[index] = {writer[name] for name in reads(graph.node[index]) if name in writer}
        frontier += wanted[index]
    try:
        # Dependencies first; inserting in the old order keeps the result deterministic.
        order = list(TopologicalSorter({i: sorted(wanted[i]) for i in sorted(wanted)}).static_order())
    except CycleError as error:
        raise BundleError("the delta graph makes the backbone read its own output; it cannot be spliced.") from error
    replace(graph.node, [graph.node[i] for i in order])
    used = values_read(graph)
    for index in reversed(range(len(graph.initializer))):  # those that stay are not copied: a task's may be large
        if graph.initializer[index].name not in used:
            del graph.initializer[index]


@Contract(ensures=[plain], keeps=[same_interface, same_operators, values_stay], mutates=True)
def strip(model: onnx.ModelProto) -> None:
    """Remove doc strings and metadata: the exporter writes stack traces with file paths into them."""
    graph = model.graph
    model.doc_string = graph.doc_string = ""
    for part in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for item in part:
            item.doc_string = ""
            del item.metadata_props[:]
    del graph.metadata_props[:]


_FOREIGN = ("delta/", "prompted/")  # what ``splice`` calls the nodes of a delta and of a prompt's placeholders


def untouched_values(graph: onnx.GraphProto, values: Sequence[str]) -> int:
    """How many of ``values``, each computed from the one before, are the backbone's own."""
    writer = writers(graph)
    seen: set[str] = set()
    for count, value in enumerate(values):
        if value not in writer or any(node.name.startswith(_FOREIGN) for node in ancestors([value], writer, seen)):
            return count
    return len(values)


@Contract(requires=[closed, one_writer], ensures=[well_formed, all_used])
def below(model: onnx.ModelProto, *values: str) -> onnx.ModelProto:
    """Keep what computes ``values``, float32, from the inputs; they become the only outputs."""
    copy = copied(model)
    for value in values:
        _writer(copy.graph, value)
    replace(copy.graph.output, [floats(value, None) for value in values])
    prune_with_inputs(copy.graph)
    return copy


@Contract(requires=[closed, one_writer], ensures=[well_formed, all_used])
def above(model: onnx.ModelProto, values: Mapping[str, Sequence[str | int]]) -> onnx.ModelProto:
    """Keep what computes the outputs from ``values``, which become inputs of these shapes."""
    copy = copied(model)
    for value, shape in values.items():
        node = _writer(copy.graph, value)
        # Renamed, not removed: a LayerNormalization has other outputs, which the rest may read.
        node.output[:] = [f"{value}/below" if name == value else name for name in node.output]
        copy.graph.input.append(floats(value, shape))
    prune_with_inputs(copy.graph)
    return copy


@Contract(requires=[one_writer], ensures=[one_writer, ordered, all_used], mutates=True)
def prune_with_inputs(graph: onnx.GraphProto) -> None:
    """As ``prune``, and drop the inputs that no node reads."""
    prune(graph)
    read = values_read(graph)
    replace(graph.input, [value for value in graph.input if value.name in read])


def _writer(graph: onnx.GraphProto, value: str) -> onnx.NodeProto:
    if (node := writers(graph).get(value)) is not None:
        return node
    raise BundleError(f"the graph has no value {value!r}, which the manifest's sites name.")


@Contract(requires=[closed], ensures=[closed], keeps=[same_operators], mutates=True)
def rename_values(graph: onnx.GraphProto, new_name: Callable[[str], str]) -> None:
    """Apply ``new_name`` to every value, input, output and initializer; nodes in subgraphs included."""
    parts = [graph]
    for each in parts:  # which grows
        for node in each.node:  # first: a new name may depend on how many were given before
            node.input[:] = [new_name(name) if name else name for name in node.input]
            node.output[:] = [new_name(name) if name else name for name in node.output]
        for item in (*each.input, *each.output, *each.value_info, *each.initializer):
            item.name = new_name(item.name)
        parts += subgraphs(each.node)

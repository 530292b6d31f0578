"""Passes: keep what the outputs need, in an order that can be run; and nothing that tells of the machine."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import onnx

from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import (
    Contract,
    all_used,
    one_writer,
    ordered,
    plain,
    same_interface,
    same_operators,
    values_stay,
)
from edgepeft.graph.protos import reads, replace

__all__ = ["prune", "strip"]


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
    used = {name for node in graph.node for name in reads(node)} | {output.name for output in graph.output}
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

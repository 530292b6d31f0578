"""Pass: give values of a graph other names."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from edgepeft.graph.contract import Contract, closed, same_operators
from edgepeft.graph.protos import subgraphs

__all__ = ["rename_values"]


@Contract(requires=[closed], ensures=[closed], keeps=[same_operators], mutates=True)
def rename_values(graph: onnx.GraphProto, new_name: Callable[[str], str]) -> None:
    """Apply ``new_name`` to every value, input, output and initializer; nodes in subgraphs included."""
    _rename(graph, new_name)


def _rename(graph: onnx.GraphProto, new_name: Callable[[str], str]) -> None:
    for node in graph.node:  # first: a new name may depend on how many were given before
        node.input[:] = [new_name(name) if name else name for name in node.input]
        node.output[:] = [new_name(name) if name else name for name in node.output]
        for subgraph in subgraphs([node]):
            _rename(subgraph, new_name)
    for part in (graph.input, graph.output, graph.value_info, graph.initializer):
        for item in part:
            item.name = new_name(item.name)

"""Pass: give values of a graph other names.

Mutates its argument.  Needs a mapping whose targets do not clash with names that stay; leaves every
reader and writer of a renamed value in agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

__all__ = ["rename_values"]


def rename_values(graph: onnx.GraphProto, new_name: Callable[[str], str]) -> None:
    """Apply ``new_name`` to every value, input, output and initializer; nodes in subgraphs included."""
    _rename_nodes(graph.node, new_name)
    for part in (graph.input, graph.output, graph.value_info, graph.initializer):
        for item in part:
            item.name = new_name(item.name)


def _rename_nodes(nodes: Iterable[onnx.NodeProto], new_name: Callable[[str], str]) -> None:
    for node in nodes:
        node.input[:] = [new_name(name) if name else name for name in node.input]
        node.output[:] = [new_name(name) if name else name for name in node.output]
        for attribute in node.attribute:
            for subgraph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                rename_values(subgraph, new_name)

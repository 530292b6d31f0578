"""Pass: keep what the outputs need, in an order that can be run.

Mutates its argument.  Needs an acyclic graph; leaves no dangling node or initializer, and nodes
sorted so that each stands after those it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import onnx

from edgepeft.errors import BundleError

__all__ = ["prune", "reads"]


def prune(graph: onnx.GraphProto) -> None:
    """Drop unreachable nodes and initializers and sort the rest.

    Raises:
        BundleError: the graph has a cycle.
    """
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
    nodes = [graph.node[i] for i in order]
    used = {name for node in nodes for name in reads(node)} | {output.name for output in graph.output}
    initializers = [initializer for initializer in graph.initializer if initializer.name in used]
    for field, kept in ((graph.node, nodes), (graph.initializer, initializers)):
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(copies)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every value that a node reads, its subgraphs' included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for subgraph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            for inner in subgraph.node:
                yield from reads(inner)

"""What contracts say of graphs: predicates of one, and relations between the graph before a pass and the one after."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, defs

from edgepeft.backbones.emit import INT8_WEIGHTS_FILE, WEIGHTS_FILE
from edgepeft.common.task_name import WEIGHTS
from edgepeft.graph.names import GENERATED, LOGITS
from edgepeft.graph.protos import ancestors, reads, subgraphs, writers

__all__ = [
    "all_used",
    "closed",
    "gives_logits",
    "one_writer",
    "ordered",
    "plain",
    "same_inputs",
    "same_interface",
    "same_operators",
    "standard",
    "values_stay",
    "weights_outside",
    "well_formed",
]


def closed(graph: onnx.GraphProto) -> Iterator[str]:
    """Nothing dangles: each value that is read is given by the graph."""
    values = set(_values(graph))
    for node in graph.node:
        yield from (f"{_called(node)} reads {name!r}, which nothing gives" for name in _outer(node) - values)
    yield from (f"nothing gives the output {each.name!r}" for each in graph.output if each.name not in values)


def ordered(graph: onnx.GraphProto) -> Iterator[str]:
    """Each node stands after those that it reads."""
    later = set(writers(graph))
    for node in graph.node:
        yield from (f"{_called(node)} reads {name!r}, which comes later" for name in _outer(node) & later)
        later.difference_update(node.output)


def one_writer(graph: onnx.GraphProto) -> Iterator[str]:
    """Each value is given once, and no two nodes have one name."""
    for names in (_values(graph), [node.name for node in graph.node]):
        yield from (f"{name!r} stands {n} times" for name, n in Counter(filter(None, names)).items() if n > 1)


def well_formed(graph: onnx.GraphProto) -> Iterator[str]:
    """Nothing dangles, nodes stand in an order that can be run, and each value is given once."""
    for predicate in (closed, ordered, one_writer):
        yield from predicate(graph)


def all_used(graph: onnx.GraphProto) -> Iterator[str]:
    """Each node and each initializer is needed for an output."""
    used: set[str] = set()
    deque(ancestors([output.name for output in graph.output], writers(graph), used), maxlen=0)
    yield from (f"nothing needs {_called(node)}" for node in graph.node if used.isdisjoint(node.output))
    yield from (f"nothing reads the initializer {t.name!r}" for t in graph.initializer if t.name not in used)


def standard(graph: onnx.GraphProto) -> Iterator[str]:
    """All operators are ONNX's own."""
    for node in graph.node:
        if node.domain or not defs.has(node.op_type):
            yield f"{_called(node)} of {node.domain!r} is not ONNX's"


def weights_outside(graph: onnx.GraphProto) -> Iterator[str]:
    """What lies in another file lies in the bundle's weights, or is a task's, as ``edgepeft.graph.external_data`` says:
    in the bundle by its name, in a file on its way there by its whole path."""
    for tensor in graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
        known = (
            where in (WEIGHTS_FILE, INT8_WEIGHTS_FILE, GENERATED)
            or where.endswith(WEIGHTS)
            or Path(where).is_absolute()
        )
        if tensor.data_location == TensorProto.EXTERNAL and not known:
            yield f"{tensor.name!r} lies in {where!r}"


def gives_logits(graph: onnx.GraphProto) -> Iterator[str]:
    """``logits`` is the only output."""
    if [output.name for output in graph.output] != [LOGITS]:
        yield f"its outputs are {[output.name for output in graph.output]}"


def plain(graph: onnx.GraphProto) -> Iterator[str]:
    """No part has a doc string or metadata."""
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer, graph):
        if part.doc_string or part.metadata_props:
            yield f"{part.name!r} has some"


def same_inputs(before: onnx.GraphProto, after: onnx.GraphProto) -> Iterator[str]:
    """The inputs' names and types, in order."""
    if [(i.name, i.type) for i in before.input] != [(i.name, i.type) for i in after.input]:
        yield f"its inputs changed: {[i.name for i in before.input]} to {[i.name for i in after.input]}"


def same_interface(before: onnx.GraphProto, after: onnx.GraphProto) -> Iterator[str]:
    """The names and types of inputs and outputs, in order."""
    yield from same_inputs(before, after)
    if [(o.name, o.type) for o in before.output] != [(o.name, o.type) for o in after.output]:
        yield f"its outputs changed: {[o.name for o in before.output]} to {[o.name for o in after.output]}"


def same_operators(before: onnx.GraphProto, after: onnx.GraphProto) -> Iterator[str]:
    """The operators, in order."""
    for old, new in itertools.zip_longest(before.node, after.node, fillvalue=onnx.NodeProto(output=["nothing"])):
        if old.op_type != new.op_type:
            yield f"the operator {_called(old)} became {_called(new)}"


def values_stay(before: onnx.GraphProto, after: onnx.GraphProto) -> Iterator[str]:
    """What a node gave is still given, under its name."""
    yield from (f"{name!r} is gone" for name in writers(before).keys() - set(_values(after)))


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    """Every value that the graph gives, as often as it is given."""
    yield from (part.name for part in (*graph.input, *graph.initializer))
    yield from (name for node in graph.node for name in node.output if name)


def _outer(node: onnx.NodeProto) -> set[str]:
    """What a node reads of the graph that it stands in; its subgraphs' own values left out."""
    inner = {name for graph in subgraphs([node]) for name in _values(graph)}
    return set(reads(node)) - inner


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]!r}"

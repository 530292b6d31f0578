"""Contracts of passes: what each requires of the graph that it is given, and what holds of the graph that it leaves.

Each call is checked where the environment sets ``EDGEPEFT_CHECK_CONTRACTS``, as the test suite does, its worker
processes included.  Elsewhere a pass is the function as it stands, and its contract costs nothing.

What they say are predicates of one graph, and relations between the graph before a pass and the one after.
"""

import functools
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import onnx
from onnx import defs

from edgepeft.backbones.emit import WEIGHTS_FILES
from edgepeft.common.task_name import WEIGHTS
from edgepeft.graph.names import GENERATED, LOGITS
from edgepeft.graph.protos import ancestors, copied, external_tensors, place_of, reads, subgraphs, writers

CHECKED = "EDGEPEFT_CHECK_CONTRACTS"

P = ParamSpec("P")
R = TypeVar("R")
# Both yield what violates them; a relation is of the graphs before and after.
Predicate = Callable[[onnx.GraphProto], Iterator[str]]
Relation = Callable[[onnx.GraphProto, onnx.GraphProto], Iterator[str]]
Graph = onnx.ModelProto | onnx.GraphProto


class ContractBroken(AssertionError):
    """A pass, or what calls it, breaks its contract."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Declares, as a decorator, a function that edits a graph in place (``mutates``) or returns a new one.

    ``requires`` holds of each graph given; ``ensures`` and ``keeps`` of the one edited, or of those returned.
    """

    requires: Sequence[Predicate] = ()
    ensures: Sequence[Predicate] = ()
    keeps: Sequence[Relation] = ()
    mutates: bool = False

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Register the function; where contracts are checked, give back one that checks each call."""
        name = f"{function.__module__}.{function.__qualname__}"
        PASSES[name] = self

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = _models((*args, *kwargs.values()))
            _see(name, "requires", self.requires, *([model] for model in given))
            before = list(map(copied, given))
            result = function(*args, **kwargs)
            if not self.mutates and before != given:
                raise ContractBroken(f"{name} mutates its argument, which it does not declare.")
            left = given if self.mutates else _models(result if isinstance(result, tuple) else (result,))
            _see(name, "ensures", self.ensures, *([model] for model in left))
            _see(name, "keeps", self.keeps, *([before[0], model] for model in left))
            return result

        return checked if os.environ.get(CHECKED) else function


PASSES: dict[str, Contract] = {}  # by module and name, of every pass that was imported
# What held once: one pass's result is the next one's argument, and a backbone is spliced for each task.
_held: set[tuple[Callable[..., Iterator[str]], int]] = set()


def _models(values: Sequence[object]) -> list[Graph]:
    return [value for value in values if isinstance(value, (onnx.ModelProto, onnx.GraphProto))]


def _see(name: str, promise: str, predicates: Sequence[Callable[..., Iterator[str]]], *cases: Sequence[Graph]) -> None:
    for models in cases:
        graphs = [model.graph if isinstance(model, onnx.ModelProto) else model for model in models]
        content = hash(tuple(graph.SerializeToString() for graph in graphs))
        for predicate in predicates:
            if (predicate, content) in _held:
                continue
            violation = next(predicate(*graphs), None)
            if violation is not None:
                raise ContractBroken(f"{name} {promise} {predicate.__name__}, but {violation}.")
            _held.add((predicate, content))


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
    """External tensors lie in the bundle's weights, or are a task's, as ``edgepeft.graph.external_data`` says.

    A task's file stands by its name in a bundle, on the way there by its whole path.
    """
    for tensor in external_tensors(graph):
        where = place_of(tensor).get("location", "")
        known = where in (*WEIGHTS_FILES.values(), GENERATED) or where.endswith(WEIGHTS) or Path(where).is_absolute()
        if not known:
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

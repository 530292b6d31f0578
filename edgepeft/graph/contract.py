"""Contracts of passes: what each requires of the graph that it is given, and what holds of the graph that it leaves.

Each call is checked where the environment sets ``EDGEPEFT_CHECK_CONTRACTS``, as the test suite does, its worker
processes included.  Elsewhere a pass is the function as it stands, and its contract costs nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import onnx

from edgepeft.graph.protos import copied

__all__ = ["CHECKED", "PASSES", "Contract", "ContractBroken"]

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

"""What kinds of task are described by: a loss as nodes, a metric, how two models agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLOSE", "Agreement", "LossGraph", "Metric", "Nodes", "listed", "same_best"]

CLOSE = 1e-4  # of two logits: what one that is held to no tolerance is taken for rounding up to

Nodes = list[tuple[str, list[str], str, dict[str, Any]]]
"""ONNX operators: type, inputs, output, attributes."""


class LossGraph(NamedTuple):
    """A loss as nodes: they read ``logits`` and ``labels``, and the constants of ``graph.gradient.training``, and give
    ``loss/of_rows`` [batch], the sum of each row's terms.  ``labels`` are int64 or numbers of these dimensions."""

    nodes: Nodes
    integers: bool
    dims: tuple[str | int, ...] = ("batch",)


class Metric(NamedTuple):
    """A function of (the bound kind, targets [n, ...], outputs [n, ...]), higher is better; and how it comes to one
    number."""

    function: Callable[[Any, Any, Any], float]
    averaged: str = "over all rows"


class Agreement(NamedTuple):
    """The share of decided rows that have the reference's decision, and the number of undecided rows."""

    share: float
    undecided: int


def same_best(reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
    """Whether the largest of each row is the same; undecided where the reference's two largest are too near."""
    best = np.sort(reference, axis=1)
    decided = best[:, -1] - best[:, -2] > 2 * (tolerance or CLOSE)
    equal = reference.argmax(axis=1) == logits.argmax(axis=1)
    return Agreement(float(equal[decided].mean()) if decided.any() else 1.0, int((~decided).sum()))


def listed(labels: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")

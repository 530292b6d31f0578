"""Scoring rows by a metric and by their mean loss, from whatever gives logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.metrics import compute

__all__ = ["SCORED_ROWS", "Scored", "score_rows"]

SCORED_ROWS = 64  # at once: no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss of a row."""

    score: float
    loss: float


def score_rows(
    logits_of: Callable[[list[int]], NDArray[np.float32]],
    rows: Encoded,
    labels: tuple[str, ...] | None,
    metric: str,
    advance: Callable[[int], None] = lambda _: None,
) -> Scored:
    """Score ``rows`` by ``logits_of`` [batch, outputs]; ``advance`` gets the number of rows after each batch.

    ``labels`` are the outputs' names, None for a regression.
    """
    outputs, loss = np.empty(len(rows.targets)), 0.0
    for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
        logits = logits_of(chosen)
        loss += float(_losses(logits, rows.targets[chosen]).sum())
        outputs[chosen] = logits[:, 0] if labels is None else logits.argmax(1)
        advance(len(chosen))
    expected, predicted = (
        values.tolist() if labels is None else [labels[int(i)] for i in values] for values in (rows.targets, outputs)
    )
    return Scored(compute(metric, expected, predicted, labels), loss / len(outputs))


def _losses(logits: NDArray[np.float32], targets: NDArray[Any]) -> NDArray[np.float64]:
    """Cross entropy, or squared error of float targets, of each row."""
    exact = logits.astype(np.float64)
    if targets.dtype.kind == "f":
        squares: NDArray[np.float64] = np.square(exact[:, 0] - targets)
        return squares
    shifted = exact - exact.max(1, keepdims=True)
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(targets)), targets]
    return losses

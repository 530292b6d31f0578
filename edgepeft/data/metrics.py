"""Scoring rows: their logits batch by batch, and what the kind of the task makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.tasks.base import TaskType

__all__ = ["SCORED_ROWS", "Scored", "score_rows"]

SCORED_ROWS = 64  # at once: no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss; of each row what is answered, as the kind's ``outputs`` are, and
    its loss; the kind with what was chosen on these rows, where it was to be; logits [n, C], where the kind says with
    them how far probabilities can be believed; and where it was to choose what is made of a text's windows, the score
    of each ``pools``."""

    score: float
    loss: float
    outputs: NDArray[Any]
    losses: NDArray[np.float64]
    kind: TaskType
    logits: NDArray[np.float32] | None = None
    pools: Mapping[str, float] = MappingProxyType({})


def score_rows(
    logits_of: Callable[[list[int]], NDArray[np.float32]],
    rows: Encoded,
    kind: TaskType,
    metric: str,
    advance: Callable[[int], None] = lambda _: None,
    *,
    choose: bool = False,
) -> Scored:
    """Score ``rows`` by ``logits_of`` [token rows, outputs]; ``advance`` gets the number of rows after each batch.

    With ``choose`` what the kind chooses (thresholds) is chosen on these rows first.  A loss of a whole batch is
    that of all these.
    """
    found = [_Answers(each, len(rows.targets)) for each in (kind.pooling() if choose else (kind,))]
    for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
        logits = logits_of(chosen)
        for each in found:
            each.take(rows, chosen, rows.by_row(logits, chosen, each.kind.pool))
        advance(len(chosen))
    scored = [each.scored(rows.targets, metric, choose=choose) for each in found]
    best = max(scored, key=lambda each: (each.score, -each.loss))  # of equals the first
    return best._replace(pools={each.kind.pool: each.score for each in scored} if len(scored) > 1 else {})


class _Answers:
    """Of all rows, by what a kind makes of their logits."""

    def __init__(self, kind: TaskType, n: int) -> None:
        self.kind, self.losses, self.outputs = kind, np.empty(n), np.empty(0)
        self.logits: NDArray[np.float32] | None = None

    def take(self, rows: Encoded, chosen: list[int], logits: NDArray[np.float32]) -> None:
        """Those of some rows."""
        found = self.kind.outputs(logits)
        if not self.kind.whole_batch:
            self.losses[chosen] = self.kind.losses(logits, rows.targets[chosen])
        if not self.outputs.size:
            self.outputs = np.empty((len(self.losses), *found.shape[1:]), found.dtype)
        self.outputs[chosen] = found
        if self.kind.calibrates:
            if self.logits is None:
                self.logits = np.empty((len(self.losses), *logits.shape[1:]), np.float32)
            self.logits[chosen] = logits

    def scored(self, targets: NDArray[Any], metric: str, *, choose: bool) -> Scored:
        """When all are taken."""
        kind, outputs = self.kind, self.outputs
        if kind.whole_batch:
            self.losses = kind.losses(np.asarray(outputs, np.float32), targets)
        kind = kind.with_chosen(targets, outputs) if choose else kind
        score, loss = kind.score(metric, targets, outputs), float(self.losses.mean())
        return Scored(score, loss, outputs, self.losses, kind, self.logits)

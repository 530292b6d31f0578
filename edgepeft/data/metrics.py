"""Scoring rows: their logits batch by batch, and what the kind of the task makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.tasks.base import Kind

__all__ = ["SCORED_ROWS", "Scored", "score_rows"]

SCORED_ROWS = 64  # at once: no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss; of each row what is answered, as the kind's ``outputs`` are, and
    its loss; the kind with what was chosen on these rows, where it was to be; and logits [n, C], where the kind says
    with them how far probabilities can be believed."""

    score: float
    loss: float
    outputs: NDArray[Any]
    losses: NDArray[np.float64]
    kind: Kind
    logits: NDArray[np.float32] | None = None


def score_rows(
    logits_of: Callable[[list[int]], NDArray[np.float32]],
    rows: Encoded,
    kind: Kind,
    metric: str,
    advance: Callable[[int], None] = lambda _: None,
    *,
    choose: bool = False,
) -> Scored:
    """Score ``rows`` by ``logits_of`` [token rows, outputs]; ``advance`` gets the number of rows after each batch.

    With ``choose`` what the kind chooses (thresholds) is chosen on these rows first.  A loss of a whole batch is
    that of all these.
    """
    losses, outputs, kept = np.empty(len(rows.targets)), np.empty(0), None
    if kind.calibrates:
        kept = np.empty((len(losses), kind.n_outputs), np.float32)
    for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
        logits = rows.by_row(logits_of(chosen), chosen)
        found = kind.outputs(logits)
        if not kind.whole_batch:
            losses[chosen] = kind.losses(logits, rows.targets[chosen])
        if not outputs.size:
            outputs = np.empty((len(losses), *found.shape[1:]), found.dtype)
        outputs[chosen] = found
        if kept is not None:
            kept[chosen] = logits
        advance(len(chosen))
    if kind.whole_batch:
        losses = kind.losses(np.asarray(outputs, np.float32), rows.targets)
    kind = kind.with_chosen(rows.targets, outputs) if choose else kind
    return Scored(kind.score(metric, rows.targets, outputs), float(losses.mean()), outputs, losses, kind, kept)

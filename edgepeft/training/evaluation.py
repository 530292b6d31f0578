"""Scoring a delta on rows, by its loss and by a metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.metrics import compute
from edgepeft.delta import Delta
from edgepeft.training.batches import tensors_of

__all__ = ["BATCH", "Scored", "evaluate", "loss_of"]

BATCH = 64  # no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss of a row."""

    score: float
    loss: float


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of [batch, labels] and int64 [batch], or squared error of [batch, 1] and float32 [batch]."""
    if targets.is_floating_point():
        return functional.mse_loss(logits.squeeze(-1), targets)
    return functional.cross_entropy(logits, targets)


def evaluate(
    delta: Delta, model: nn.Module, rows: Encoded, metric: str, *, advance: Callable[[int], None] = lambda _: None
) -> Scored:
    """Score ``delta`` on ``rows``; ``advance`` is told the number of rows after each batch."""
    delta.eval()
    predicted: dict[int, float] = {}
    loss = 0.0
    with torch.inference_mode():
        for chosen in sorted_batches(rows.lengths, BATCH):
            inputs, targets = tensors_of(rows, chosen)
            logits = delta.logits(model, inputs)
            loss += float(loss_of(logits, targets)) * len(chosen)
            values = logits.squeeze(-1) if targets.is_floating_point() else logits.argmax(-1)
            predicted.update(zip(chosen, values.tolist(), strict=True))
            advance(len(chosen))
    guesses = [predicted[i] for i in range(len(predicted))]
    return Scored(_score(delta.card.labels, metric, rows.targets.tolist(), guesses), loss / len(guesses))


def _score(labels: tuple[str, ...] | None, metric: str, targets: list[float], guesses: list[float]) -> float:
    if labels is None:
        return compute(metric, targets, guesses)
    return compute(metric, [labels[int(i)] for i in targets], [labels[int(i)] for i in guesses], names=labels)

"""From logits to answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.errors import BundleError

__all__ = ["Prediction", "of_width", "predictions"]


@dataclass(frozen=True)
class Prediction:
    """One row's answer: a label with its probability, or a number (``label`` None) for regression; and its logits."""

    task: str
    label: str | None
    score: float
    scores: dict[str, float]
    logits: tuple[float, ...]

    @property
    def value(self) -> str | float:
        """The label, or the number."""
        return self.score if self.label is None else self.label

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        if self.label is None:
            return {"task": self.task, "value": self.score}
        return {"task": self.task, "label": self.label, "score": self.score, "scores": self.scores}


def of_width(n_outputs: int, task: str, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """``logits`` [batch, outputs] as they are, after a check that the manifest's entry has as many outputs.

    Raises:
        BundleError: more, or fewer.
    """
    if logits.shape[1] != n_outputs:
        raise BundleError(f"task {task} gives {logits.shape[1]} logits; its manifest entry names {n_outputs}.")
    return logits


def predictions(task: str, labels: Sequence[str] | None, logits: NDArray[np.float32]) -> list[Prediction]:
    """[batch, outputs] -> one answer a row; probabilities are the softmax of the logits."""
    if labels is None:
        return [Prediction(task, None, float(row[0]), {}, (float(row[0]),)) for row in logits]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    answers = []
    for row, raw in zip(probabilities, logits, strict=True):
        scores = {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)}
        best = int(row.argmax())
        answers.append(Prediction(task, labels[best], scores[labels[best]], scores, tuple(map(float, raw))))
    return answers

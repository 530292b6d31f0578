"""From logits to answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text
from edgepeft.errors import BundleError
from edgepeft.runtime.manifest import TaskEntry

__all__ = ["Prediction", "of_width", "predictions"]


@dataclass(frozen=True)
class Prediction:
    """One row's answer: a label with its probability, or a number (``label`` None) for regression; and its logits.

    ``note`` says what speaks against it: a text of another kind than those that the task was trained on.
    """

    task: str
    label: str | None
    score: float
    scores: dict[str, float]
    logits: tuple[float, ...]
    note: str = ""

    @property
    def value(self) -> str | float:
        """The label, or the number."""
        return self.score if self.label is None else self.label

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON; ``note`` where there is one."""
        note = {"note": self.note} if self.note else {}
        if self.label is None:
            return {"task": self.task, "value": self.score, **note}
        return {"task": self.task, "label": self.label, "score": self.score, "scores": self.scores, **note}


def of_width(n_outputs: int, task: str, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """``logits`` [batch, outputs] as they are, after a check that the manifest's entry has as many outputs.

    Raises:
        BundleError: more, or fewer.
    """
    if logits.shape[1] != n_outputs:
        raise BundleError(f"task {task} gives {logits.shape[1]} logits; its manifest entry names {n_outputs}.")
    return logits


def predictions(task: str, entry: TaskEntry, texts: Sequence[Text], logits: NDArray[np.float32]) -> list[Prediction]:
    """[batch, outputs] -> one answer for each of ``texts``; probabilities are the softmax of the logits."""
    notes = [_note(text, entry) for text in texts]
    if entry.labels is None:
        values = [float(row[0]) for row in logits]
        return [Prediction(task, None, value, {}, (value,), note) for value, note in zip(values, notes, strict=True)]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    answers = []
    for row, raw, note in zip(probabilities, logits, notes, strict=True):
        scores = {label: round(float(p), 6) for label, p in zip(entry.labels, row, strict=True)}
        best = entry.labels[int(row.argmax())]
        answers.append(Prediction(task, best, scores[best], scores, tuple(map(float, raw)), note))
    return answers


def _note(text: Text, entry: TaskEntry) -> str:
    if not text.first.strip() and not (text.second or "").strip():
        return "the text is empty"
    if entry.pairs and text.second is None:
        return "the task was trained on pairs of texts, and one text was given"
    # Of an imported task nobody stated what it was trained on.
    if not entry.pairs and entry.training and text.second is not None:
        return "the task was trained on single texts, and a pair was given"
    return ""

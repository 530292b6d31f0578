"""What a task answers to one row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "Prediction"]


class Answer(ABC):
    """A task's answer to one row; ``note`` says what speaks against it."""

    task: str
    note: str

    @property
    @abstractmethod
    def value(self) -> Any:
        """What is answered: the label, the number, or the text."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: ``task``, next what is answered; ``note`` where there is one."""


@dataclass(frozen=True)
class Prediction(Answer):
    """One row's answer: a label with its probability, or a number (``label`` None) for regression; and its logits.

    ``note`` says what speaks against it: a text of another kind than those that the task was trained on.  ``expected``
    is the mean of labels that are numbers, each as probable as its score.  ``unsure`` says that the answer is not one
    of those that the task makes a promise of; None where it makes none.
    """

    task: str
    label: str | None
    score: float
    scores: dict[str, float]
    logits: tuple[float, ...]
    note: str = ""
    expected: float | None = None
    unsure: bool | None = field(default=None, kw_only=True)

    @property
    def value(self) -> Any:
        """The label, or the number."""
        return self.score if self.label is None else self.label

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON; ``note`` where there is one."""
        note = {"note": self.note} if self.note else {}
        if self.label is None:
            return {"task": self.task, "value": self.score, **note}
        mean = {} if self.expected is None else {"expected": self.expected}
        doubt = {} if self.unsure is None else {"unsure": self.unsure}
        found = {"task": self.task, "label": self.label, "score": self.score, "scores": self.scores}
        return {**found, **mean, **doubt, **note}

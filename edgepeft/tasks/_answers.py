"""What a task answers to a row: a label or number, a vector, or what kinds of their own make (``Answer``)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Answer(ABC):
    """A task's answer to one row; ``note`` says what speaks against it."""

    task: str
    note: str

    @property
    @abstractmethod
    def value(self) -> Any:
        """What is answered: the label, the number, or the text."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What is answered, as plain values for JSON."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: ``task``, next what is answered; ``note`` where there is one."""
        return {"task": self.task, **self.facts, **({"note": self.note} if self.note else {})}

    @property
    def is_finite(self) -> bool:
        """True if no number of it is NaN or infinite."""
        return True


@dataclass(frozen=True)
class Prediction(Answer):
    """One row's answer: a label with its probability, or a number for regression; and its logits."""

    task: str
    label: str | None  # None for a number
    score: float
    scores: dict[str, float]
    logits: tuple[float, ...]
    note: str = ""  # what speaks against it: a text of another kind than those that the task was trained on
    expected: float | None = None  # the mean of labels that are numbers, each as probable as its score
    unsure: bool | None = field(default=None, kw_only=True)  # not of those that a guarantee is made of; None: of none

    @property
    def value(self) -> Any:
        return self.score if self.label is None else self.label

    @property
    def is_finite(self) -> bool:
        """True if the sum is finite: sums of float32 overflow no float64."""
        return math.isfinite(self.score + (self.expected or 0.0) + sum(self.scores.values()) + sum(self.logits))

    @property
    def facts(self) -> dict[str, Any]:
        if self.label is None:
            return {"value": self.score}
        found = {name: getattr(self, name) for name in ("label", "score", "scores", "expected", "unsure")}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class VectorPrediction(Prediction):
    """A text's vector of ``dims`` numbers; the logits of a pair are those of both texts, one after the other."""

    dims: int = 0

    @property
    def vector(self) -> NDArray[np.float32]:
        """[dims]."""
        return np.array(self.logits[: self.dims], np.float32)

    @property
    def value(self) -> list[float]:
        """The vector, in the shortest decimals of a float32."""
        return [float(str(number)) for number in self.vector]

    @property
    def cosine(self) -> float | None:
        """Of the two texts of a pair."""
        if len(self.logits) == self.dims:
            return None
        one, other = both = np.array(self.logits, np.float64).reshape(-1, self.dims)
        return round(float(one @ other / max(1e-12, float(np.linalg.norm(both, axis=1).prod()))), 6)

    def cut(self, dims: int | None) -> VectorPrediction:
        """Its first ``dims`` numbers, of length 1 again (Kusupati et al., 2022, arXiv:2205.13147); None takes all."""
        if dims is None:
            return self
        kept = np.array(self.logits, np.float64).reshape(-1, self.dims)[:, :dims]
        kept = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        return replace(self, logits=tuple(kept.astype(np.float32).ravel().tolist()), dims=kept.shape[1])

    @property
    def facts(self) -> dict[str, Any]:
        return {"vector": self.value} | ({} if self.cosine is None else {"cosine": self.cosine})

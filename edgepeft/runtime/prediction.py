"""From logits, or from tokens that were written, to answers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.data.answers import Answer, Prediction

if TYPE_CHECKING:
    from edgepeft.runtime.inputs import ReadRows

A = TypeVar("A", bound=Answer)
_FEW = 64
RowResult = Answer | NDArray[np.float32] | EdgepeftError  # of a row of a mixed batch


@dataclass(frozen=True)
class TextAnswer(Answer):
    """What a task wrote; ``ended`` is false where the text was cut at the largest number of tokens."""

    task: str
    text: str
    ended: bool
    note: str = ""
    tokens: tuple[int, ...] = ()  # of the text, without the one that ends it

    @property
    def value(self) -> str:
        """The text."""
        return self.text

    @property
    def facts(self) -> dict[str, Any]:
        """The text, and whether it ended by itself."""
        return {"text": self.text, "ended": self.ended}


def of_width(n_outputs: int, task: str | None, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """``logits`` [batch, ..., outputs] as they are, after a check that the manifest's entry has as many outputs; of the
    bare backbone (None) hidden states, as wide as its config says."""
    if (found := logits.shape[-1]) != n_outputs:
        if task is None:
            raise BundleError(f"the backbone gives hidden states of {found} numbers; its config names {n_outputs}.")
        raise BundleError(f"task {task} gives {found} logits; its manifest entry names {n_outputs}.")
    return logits


def predictions(
    task: str, entry: TaskEntry, read: ReadRows, logits: NDArray[np.float32], batch: TokenBatch
) -> list[Prediction]:
    """[token rows, ...] -> one answer for each row, by the task's kind; not ``in_numbers`` where logits are none."""
    kind, notes = entry.task_kind, [note_of(text, entry) for text in read.first]
    if kind.windows or read.per_row is not None:
        logits = kind.grouping(batch, read.per_row).by_row(logits, kind.pool)
    beside = kind.beside(read.given, read.texts, batch)
    # Of few numbers Python's own sum: NumPy's takes 10 microseconds more between two texts, with cold caches.
    few = logits.size <= _FEW
    if math.isfinite(sum(logits.ravel().tolist()) if few else np.add.reduce(logits, None)):  # then each is a number
        return kind.predictions(task, logits, notes, beside)
    numbers = np.isfinite(logits)
    answers = kind.predictions(task, np.where(numbers, logits, np.float32(0)), notes, beside)
    return [a if row.all() else replace(a, score=math.nan) for a, row in zip(answers, numbers, strict=True)]


def no_number(task: str | None) -> BundleError:
    """Make the error of a task that gives NaN or an infinite number."""
    name = "the bare backbone" if task is None else f"task {task}"
    return BundleError(
        f"{name} gives NaN or an infinite number for this text; its values are damaged. Export it again."
    )


def number_or_error(result: RowResult, task: str | None) -> RowResult:
    """A row's result, or in its place the error that one of its numbers is NaN or infinite."""
    if isinstance(result, EdgepeftError):
        return result
    sound = result.in_numbers if isinstance(result, Answer) else bool(np.isfinite(result).all())
    return result if sound else no_number(task)


def in_numbers(answers: Sequence[A]) -> Sequence[A]:
    """The answers; raises BundleError if a number in them is NaN or infinite."""
    for answer in answers:
        if not answer.in_numbers:
            raise no_number(answer.task)
    return answers


class Notes:
    """Says each note on a task's texts once."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def told(self, answers: Sequence[A]) -> list[A]:
        """The answers, after a warning where texts are not of the kind that their task was trained on."""
        for answer in answers:
            if answer.note and (said := (answer.task, answer.note)) not in self._said:
                self._said.add(said)
                warnings.warn(f"task {answer.task}: {answer.note}.", UserWarning, stacklevel=3)
        return list(answers)


def note_of(text: Text, entry: TaskEntry) -> str:
    """Say what speaks against an answer: a text of another kind than those that the task was trained on."""
    if not text.first.strip() and not (text.second or "").strip():
        return "the text is empty"
    if entry.pairs and text.second is None:
        return "the task was trained on pairs of texts, and one text was given"
    # Of an imported task nobody stated what it was trained on.
    if not entry.pairs and entry.training and text.second is not None:
        return "the task was trained on single texts, and a pair was given"
    return ""

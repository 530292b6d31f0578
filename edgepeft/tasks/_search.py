"""The search for the best span among windows, for the tokens to learn, and for the threshold of no answer.

Letters: B rows, K windows of the row that has most, S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.answers import Prediction
from edgepeft.data.row_grouping import LOWEST, Passage

__all__ = ["SpansPrediction", "best_spans", "best_threshold", "wanted_of", "windows_of"]

Values = NDArray[Any]
_LONGEST = 30  # tokens of an answer: run_qa's


@dataclass(frozen=True)
class SpansPrediction(Prediction):
    """The ``text`` that stands in the passage from ``start`` to before ``end``, in Python's characters; empty, without
    places, where there is no answer."""

    text: str = ""
    start: int | None = None
    end: int | None = None
    of_row: Any = field(default=None, compare=False, repr=False)  # (logits [K, S, 2], passage)

    @property
    def value(self) -> str:
        """The answer's text."""
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON; ``note`` where there is one."""
        there = self.start is not None
        places = {"start": self.start, "end": self.end} if there else {}
        note = {"note": self.note} if self.note else {}
        return {"task": self.task, "text": self.text, "answered": there, **places, "score": self.score, **note}


def best_spans(logits: NDArray[Any]) -> Values:
    """[B, K, S, 2] -> [B, 5]: window, first and last token, the span's score, and that of no answer."""
    exact = logits.astype(np.float64)
    starts, ends, n_tokens = exact[..., 0], exact[..., 1], exact.shape[2]
    nothing = starts[:, :, 0] + ends[:, :, 0]
    nothing = np.where(nothing > LOWEST, nothing, np.inf).min(1)  # LOWEST twice: there is no such window
    found = np.tile([0.0, 0.0, 0.0, 2 * LOWEST], (len(exact), 1))
    for further in range(min(_LONGEST, n_tokens - 1)):
        scores = starts[:, :, 1 : n_tokens - further] + ends[:, :, 1 + further :]
        flat = scores.reshape(len(exact), -1)
        best = flat.argmax(1)
        window, first = np.divmod(best, scores.shape[2])
        value = flat[np.arange(len(flat)), best]
        better = value > found[:, 3]
        found[better] = np.stack([window, first + 1, first + 1 + further, value], 1)[better]
    return np.concatenate([found, nothing[:, None]], 1)


def best_threshold(apart: Values, gains: Values) -> float:
    """Where to divide rows by ``apart`` [n], midway between two, so that the ``gains`` [n] of those at most there,
    which are answered, have the greatest sum; of several such places the lowest."""
    order = np.argsort(apart, kind="stable")
    ranked = apart[order]
    cuts = np.concatenate([[ranked[0] - 1], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] + 1]])
    totals = np.concatenate([[0.0], np.cumsum(gains[order])])
    between = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    return float(cuts[int(np.where(between, totals, -np.inf).argmax())])


def wanted_of(passage: Passage, answers: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """[windows, 2]: the places of the first answer's first and last token; (0, 0) where a window has not all of it."""
    found = np.zeros((len(passage.places), 2), np.int64)
    for i, (places, offsets) in enumerate(zip(passage.places, passage.offsets, strict=True)):
        if not answers or not len(places):
            continue
        (start, text), (starts, ends) = answers[0], offsets.T
        end = start + len(text)
        if starts[0] <= start and ends[-1] >= end:
            first = starts[np.searchsorted(starts, start, "right") - 1]
            last = ends[np.searchsorted(ends, end)]
            # Several tokens may be of one character, which an emoji's bytes are.
            found[i] = places[np.searchsorted(starts, first)], places[np.searchsorted(ends, last, "right") - 1]
    return found


def windows_of(targets: Values) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Of each window of these rows: the places of its tokens, and of its first and last wanted one."""
    return [pair for target in targets for pair in zip(target.passage.places, target.wanted, strict=True)]

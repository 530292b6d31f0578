"""Answers in passages: as rows state them, by SQuAD's scores, and the best span among windows.

A row's ``label`` is canonical JSON: a list of [start, text], empty where the passage has no answer.

Letters: B rows, K windows of the row that has most, S tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError
from edgepeft.data.labels import shown
from edgepeft.data.row_grouping import LOWEST, Passage
from edgepeft.data.rows import Row
from edgepeft.tasks._facts import Values
from edgepeft.tasks.base import Prediction
from edgepeft.tasks.text import exact_match

_FORMS = '{"text": ["1912"], "answer_start": [17]}, as SQuAD has them, empty lists where the passage has no answer'


def answers_label(value: Any, where: str) -> str:
    """Return a row's answers as canonical text."""
    try:
        found = [(start, text) for start, text in _pairs(value)]
        if any(type(start) is not int or not isinstance(text, str) for start, text in found):
            raise TypeError
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, KeyError, ValueError):
        raise DataError(f"{where}: answers are {_FORMS}; found {shown(value)}.") from None


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if value in (None, "", [], {}):
        return []
    if isinstance(value, str):  # a table's cell
        return _pairs(json.loads(value))
    if isinstance(value, Mapping):
        starts, texts = value["answer_start"], value["text"]
        if isinstance(texts, str):
            starts, texts = [starts], [texts]
        return list(zip(starts, texts, strict=True))
    return [(each["answer_start"], each["text"]) for each in value]


def answers_of(row: Row) -> list[tuple[int, str]]:
    """Return where each answer starts, and its text, after a check against the passage."""
    passage, found = row.sentence2 or "", [(start, text) for start, text in json.loads(row.label or "[]")]
    for name, text in (("question", row.sentence1), ("passage", passage)):
        if not text.strip():
            raise DataError(f"{row.where}: the {name} is empty; a row has a question and a passage to find it in.")
    for start, text in found:
        if not text.strip():
            raise DataError(
                f"{row.where}: an answer has no text; where the passage has none, answers is an empty list."
            )
        if start < 0 or start + len(text) > len(passage):
            wrong = "starts before it" if start < 0 else "ends beyond it"
            raise DataError(
                f"{row.where}: the answer {shown(text)} at {start} {wrong}: the passage has {len(passage)} characters "
                "(of Python: an emoji is one)."
            )
        if (there := passage[start : start + len(text)]) != text:
            at = passage.find(text)
            hint = f"it stands at {at}" if at >= 0 else "it stands nowhere in it"
            raise DataError(
                f"{row.where}: at {start} of the passage stands {shown(there)}, and not the answer {shown(text)}; "
                f"{hint}."
            )
    return found


def right_texts(row: Row) -> tuple[str, ...]:
    """Return what SQuAD's script compares with: answers that have a word, or the empty text."""
    texts = dict.fromkeys(text for _, text in json.loads(row.label or "[]") if not exact_match(text, ""))
    return tuple(texts) or ("",)


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

    @property
    def facts(self) -> dict[str, Any]:
        """The text and where it stands."""
        there = self.start is not None
        places = {"start": self.start, "end": self.end} if there else {}
        return {"text": self.text, "answered": there, **places, "score": self.score}


def best_spans(logits: NDArray[Any]) -> Values:
    """Search [B, K, S, 2] for window, first and last token, the span's score, and that of no answer, [B, 5]."""
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
    """Return the distance that maximises the summed ``gains`` [n] of the rows at most so far ``apart`` [n], midway
    between two rows; of several the lowest."""
    order = np.argsort(apart, kind="stable")
    ranked = apart[order]
    cuts = np.concatenate([[ranked[0] - 1], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] + 1]])
    totals = np.concatenate([[0.0], np.cumsum(gains[order])])
    between = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    return float(cuts[int(np.where(between, totals, -np.inf).argmax())])


def wanted_of(passage: Passage, answers: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """Place the first answer's first and last token, [windows, 2]; (0, 0) if a window has not all of it."""
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
    """Return of each window of these rows the places of its tokens, and of its first and last wanted one."""
    return [pair for target in targets for pair in zip(target.passage.places, target.wanted, strict=True)]

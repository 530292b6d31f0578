"""Where a task goes wrong: precision, recall and F1 of each class and the confusion matrix, or residuals; worst rows.

Of a class, precision is the share of right ones among the rows that were given it, recall among those that have it, F1
their harmonic mean (van Rijsbergen, 1979); what would be 0 / 0 is 0.  A residual is the answer less the label.

Rows that belong together are scored together: each part of the data for itself, as MNLI's matched and mismatched rows
(Williams et al., 2018, arXiv:1704.05426), and questions with several answers.  Of MultiRC each row is an answer, of
which any may be right: SuperGLUE has F1 over all answers (F1a) and the share of questions of which every answer is
judged rightly (EM; Wang et al., 2019, arXiv:1905.00537, section 3).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgepeft.common.errors import DataError
from edgepeft.data.rows import Row

__all__ = ["WORST", "Groups", "by_class", "mislabelled", "shown_row", "without_texts", "worst_of"]

WORST = 10  # rows listed
_SHOWN = 160  # characters of a text


def by_class(names: Sequence[str], right: Sequence[int], given: Sequence[int], has: Sequence[int]) -> dict[str, Any]:
    """``by_class`` and ``macro`` (their means), of how many rows have a label, are given it, and are so rightly."""
    found = {}
    for name, hits, answers, support in zip(names, right, given, has, strict=True):
        found[name] = {
            "precision": hits / max(1, answers),
            "recall": hits / max(1, support),
            "f1": 2 * hits / max(1, answers + support),
            "support": support,
        }
    macro = {key: float(np.mean([row[key] for row in found.values()])) for key in ("precision", "recall", "f1")}
    return {"by_class": found, "macro": macro}


def worst_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of the highest ``loss``, the worst first."""
    return [dict(row) for row in heapq.nlargest(WORST, rows, key=lambda row: row["loss"])]


def shown_row(row: Row, label: Any, answer: Any, loss: float, more: Mapping[str, Any]) -> dict[str, Any]:
    """Where a row stands, how its text begins, what is right and what was answered."""
    text = " ".join((row.sentence1 + (f" / {row.sentence2}" if row.sentence2 else "")).split())
    return {"row": row.short, "text": text[:_SHOWN], "label": label, "answer": answer, "loss": loss, **more}


def mislabelled(
    doubted: Sequence[tuple[int, Mapping[str, Any]]], shown: Callable[[int], Mapping[str, Any]]
) -> dict[str, Any]:
    """``mislabelled`` rows, the likeliest first, and how many there are in all as ``mislabelled_rows``.

    ``doubted`` has the place of each and what speaks against its label, ``shown`` gives the row of a place.
    """
    worst = [(shown(place), of) for place, of in doubted[:WORST]]
    told = [{"row": row["row"], "text": row["text"], **of} for row, of in worst]
    return {"mislabelled_rows": len(doubted), "mislabelled": told}


def without_texts(errors: Mapping[str, Any]) -> dict[str, Any]:
    """For a file that is handed on: rows are named, and what they say is left out."""
    lists = ("worst", "mislabelled")
    kept = {name: [{k: v for k, v in row.items() if k != "text"} for row in errors.get(name, ())] for name in lists}
    return {name: kept.get(name, value) for name, value in errors.items()}


_OF_QUESTION = ("paragraph", "question")  # of SuperGLUE's ``idx``, which also numbers the answer


@dataclass
class Groups:
    """Which part and which question each row is of, by the columns ``by`` and ``question``.

    Where no question is asked for, rows whose ``idx`` has paragraph, question and answer say theirs.
    """

    by: str | None = None
    question: tuple[str, ...] = ()
    _parts: list[str] = field(default_factory=list)
    _questions: list[Hashable] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        """Whether rows must have columns beside their texts and labels."""
        return bool(self.by or self.question)

    def add(self, rows: Iterable[Row]) -> None:
        """Take over what they belong to."""
        for row in rows:
            if self.by:
                self._parts.append(str(_value(row, self.by)))
            question = tuple(str(_value(row, column)) for column in self.question) or _numbered(row)
            if question is not None:
                self._questions.append(question)

    def scores(
        self,
        score: Callable[[Sequence[int]], float],
        right: Callable[[int], bool] | None,
    ) -> dict[str, Any]:
        """``parts``: name -> score and rows; ``questions``: their exact match and number; what there is of both.

        ``score`` is of the rows of these places, ``right`` says whether a row is; None where no row is right or wrong.
        """
        found: dict[str, Any] = {}
        if self._parts:
            places = _places(self._parts)
            found["parts"] = {name: {"score": score(of), "rows": len(of)} for name, of in places.items()}
        if self._questions and right is not None:
            each = [float(all(map(right, of))) for of in _places(self._questions).values()]
            found["questions"] = {"exact_match": float(np.mean(each)), "questions": len(each)}
        return found


def _value(row: Row, column: str) -> Any:
    others = row.others or {}
    if column not in others:
        raise DataError(f"{row.where}: there is no column {column}. Found columns: {', '.join(others)}.")
    return others[column]


def _numbered(row: Row) -> Hashable | None:
    index = (row.others or {}).get("idx")
    if not isinstance(index, Mapping) or not {*_OF_QUESTION, "answer"} <= index.keys():
        return None
    return tuple(str(index[name]) for name in _OF_QUESTION)


def _places(names: Sequence[Any]) -> dict[Any, list[int]]:
    places: dict[Any, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        places[name].append(i)
    return places

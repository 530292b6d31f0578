"""Scores of rows that belong together: each part of the data for itself, and questions with several answers.

MNLI is reported for its matched and its mismatched rows (Williams et al., 2018, arXiv:1704.05426).  Of MultiRC each
row is an answer, of which any may be right: SuperGLUE has F1 over all answers (F1a) and the share of questions of
which every answer is judged rightly (EM; Wang et al., 2019, arXiv:1905.00537, section 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgepeft.common.errors import DataError
from edgepeft.data.rows import Row

__all__ = ["Groups"]

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
        """Take over what they belong to.

        Raises:
            DataError: a row lacks a column.
        """
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

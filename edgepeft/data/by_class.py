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

__all__ = ["WORST", "Groups", "by_class", "certainty_figures", "class_rows", "figure_rows", "in_words", "worst_of"]

WORST = 10  # rows listed
_MOST_COLUMNS = 8  # of a matrix in a table


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


def class_rows(errors: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: the classes, lowest F1, then most rows, first; or the residuals, or scores of texts."""
    if "texts" in errors:
        return figure_rows(errors["texts"])
    if "residuals" in errors:
        return figure_rows(errors["residuals"], "residual")
    if not errors.get("by_class"):  # a kind of task without labels
        return figure_rows(errors["figures"])
    found, confusion = errors["by_class"], errors.get("confusion")
    matrix = len(found) <= _MOST_COLUMNS
    more = [] if not confusion else [f"as {name}" for name in found] if matrix else ["most often taken for"]
    rows = []
    for name, of in sorted(found.items(), key=lambda item: (item[1]["f1"], -item[1]["support"])):
        given = (confusion or {}).get(name, {})
        taken = [str(given.get(other, 0)) for other in found] if matrix else [_most_wrong(name, given)]
        figures = (f"{of[key]:.3f}" for key in ("precision", "recall", "f1"))
        rows.append([name, *figures, str(of["support"]), *taken[: len(more)]])
    return ["label", "precision", "recall", "F1", "rows", *more], rows


def figure_rows(figures: Mapping[str, float], head: str = "score") -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of figures that are not of classes."""
    return [head, ""], [[name.replace("_", " "), f"{value:.4f}"] for name, value in figures.items()]


def certainty_figures(calibration: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The same of how far probabilities can be believed, and of what is promised of the answers that are sure."""
    error, kept = calibration["ece"], dict(calibration.get("promise") or {})
    figures = {"temperature": calibration["temperature"], "calibration error without it": error["before"]}
    figures |= {"calibration error with it": error["after"]}
    return figure_rows(figures | {name: value for name, value in kept.items() if value is not None}, "certainty")


def in_words(value: Any) -> str:
    """An answer or a label in a cell: several are told one by one."""
    return (", ".join(map(str, value)) or "-") if isinstance(value, list) else str(value)


def _most_wrong(name: str, given: Mapping[str, int]) -> str:
    wrong = {other: n for other, n in given.items() if other != name}
    most = max(wrong, key=lambda other: wrong[other], default=None)
    return "" if most is None else f"{most} ({wrong[most]})"


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

"""Where a task goes wrong: precision, recall and F1 of each class and the confusion matrix, or residuals; worst rows.

Of a class, precision is the share of right ones among the rows that were given it, recall among those that have it, F1
their harmonic mean (van Rijsbergen, 1979); what would be 0 / 0 is 0.  A residual is the answer less the label.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["WORST", "class_rows", "errors_of", "worst_of"]

WORST = 10  # rows listed
_MOST_COLUMNS = 8  # of a matrix in a table

Value = str | float


def errors_of(expected: Sequence[Value], answers: Sequence[Value], names: Sequence[str] | None) -> dict[str, Any]:
    """``by_class``, ``macro`` (their means) and ``confusion`` (label -> answer -> rows, no zeros); or ``residuals``.

    ``names`` are the labels, None for a regression.
    """
    if names is None:
        off = np.asarray(answers, np.float64) - np.asarray(expected, np.float64)
        size = np.abs(off)
        figures = {"mean": off.mean(), "mean_absolute": size.mean(), "root_mean_square": np.sqrt((off**2).mean())}
        figures |= {f"absolute_p{q}": np.percentile(size, q) for q in (50, 90, 100)}
        return {"residuals": {name: float(value) for name, value in figures.items()}}
    pairs, given = Counter(zip(expected, answers, strict=True)), Counter(answers)
    confusion = {name: {other: pairs[name, other] for other in names if pairs[name, other]} for name in names}
    by_class = {}
    for name in names:
        right, support = pairs[name, name], sum(confusion[name].values())
        by_class[name] = {
            "precision": right / max(1, given[name]),
            "recall": right / max(1, support),
            "f1": 2 * right / max(1, given[name] + support),
            "support": support,
        }
    macro = {key: float(np.mean([row[key] for row in by_class.values()])) for key in ("precision", "recall", "f1")}
    return {"by_class": by_class, "macro": macro, "confusion": confusion}


def worst_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of the highest ``loss``, the worst first."""
    return [dict(row) for row in heapq.nlargest(WORST, rows, key=lambda row: row["loss"])]


def class_rows(errors: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: the classes, those of the lowest F1 first, or the residuals."""
    if "residuals" in errors:
        return ["residual", ""], [[name.replace("_", " "), f"{v:.4f}"] for name, v in errors["residuals"].items()]
    by_class, confusion = errors["by_class"], errors["confusion"]
    matrix = len(by_class) <= _MOST_COLUMNS
    more = [f"as {name}" for name in by_class] if matrix else ["most often taken for"]
    rows = []
    for name, of in sorted(by_class.items(), key=lambda item: item[1]["f1"]):
        row = [name, *(f"{of[key]:.3f}" for key in ("precision", "recall", "f1")), str(of["support"])]
        wrong = {other: n for other, n in confusion.get(name, {}).items() if other != name}
        most = max(wrong, key=lambda other: wrong[other], default=None)
        taken = "" if most is None else f"{most} ({wrong[most]})"
        rows.append(row + ([str(confusion.get(name, {}).get(other, 0)) for other in by_class] if matrix else [taken]))
    return ["label", "precision", "recall", "F1", "rows", *more], rows

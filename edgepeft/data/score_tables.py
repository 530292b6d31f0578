"""Scores and errors as people read them: heads and rows of tables, numbers of three places, texts of one line.

A confusion matrix is label -> answer -> rows, in the order of the labels: as rows, as csv, as a picture.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepeft.common.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FILES",
    "MOST_SHOWN",
    "Rows",
    "certainty_figures",
    "class_rows",
    "confusion_inches",
    "figure_rows",
    "headline_rows",
    "in_words",
    "matrix",
    "mistakes",
    "p_value",
    "plot_confusion",
    "rounded",
    "row_lines",
    "titled",
    "unseen",
    "write_confusion",
]

Rows = tuple[list[str], list[list[str]]]
"""Head and rows of a table."""

_LEAST = 0.001


def rounded(value: float | None) -> str:
    """Of a score, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def p_value(p: float) -> str:
    """``0.031``, or ``< 0.001``."""
    return f"< {_LEAST}" if p < _LEAST else rounded(p)


def titled(metric: str) -> str:
    """A metric in words."""
    return metric.replace("_", " ").replace("f1", "F1")


def headline_rows(found: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Each figure with its interval, beside it the baselines', and the p of those that were compared."""
    rows = []
    for each in found:
        between = "-" if each["low"] is None else f"{rounded(each['low'])} to {rounded(each['high'])}"
        beside = (rounded(of["scores"].get(each["metric"])) for of in baselines.values())
        rows.append([titled(each["metric"]), rounded(each["score"]), between, *beside])
    if any("p" in of for of in baselines.values()):
        rows.append(["McNemar's p", "", "", *(p_value(of["p"]) for of in baselines.values())])
    return ["figure", "score", "95 % interval", *baselines], rows


def class_rows(errors: Mapping[str, Any]) -> Rows:
    """The classes that rows have, lowest F1, then most rows, first; or the residuals, or scores of texts."""
    if "texts" in errors:
        return figure_rows(errors["texts"])
    if "residuals" in errors:
        return figure_rows(errors["residuals"], "residual")
    if not errors.get("by_class"):  # a kind of task without labels
        return figure_rows(errors["figures"])
    rows = [
        [name, *(rounded(of[key]) for key in ("precision", "recall", "f1")), f"{of['support']:,}"]
        for name, of in sorted(errors["by_class"].items(), key=lambda item: (item[1]["f1"], -item[1]["support"]))
        if of["support"]
    ]
    return ["label", "precision", "recall", "F1", "rows"], rows


def unseen(errors: Mapping[str, Any]) -> list[str]:
    """The labels that no row has."""
    return [name for name, of in (errors.get("by_class") or {}).items() if not of["support"]]


def figure_rows(figures: Mapping[str, float], head: str = "score") -> Rows:
    """Figures that are not of classes."""
    return [head, ""], [[titled(name), rounded(value)] for name, value in figures.items()]


def certainty_figures(calibration: Mapping[str, Any]) -> Rows:
    """How far probabilities can be believed, and what is guaranteed of the answers that are sure."""
    error, kept = calibration["ece"], dict(calibration.get("promise") or {})
    figures = {"temperature": calibration["temperature"], "calibration error without it": error["before"]}
    figures |= {"calibration error with it": error["after"]}
    return figure_rows(figures | {name: value for name, value in kept.items() if value is not None}, "certainty")


def row_lines(found: Sequence[Mapping[str, Any]], other: str = "answer") -> list[tuple[str, str]]:
    """Of rows that are shown one by one: where each stands with its label and ``other``, each with its probability
    where that is known, else with the loss; and its text, where that is known."""
    lines = []
    for each in found:
        sides = ", ".join(f"{name} {_with_probability(each, name)}" for name in ("label", other))
        loss = "" if each.get("label_probability") is not None else f", loss {rounded(each['loss'])}"
        lines.append((f"{each['row']}: {sides}{loss}", each.get("text", "")))
    return lines


def _with_probability(each: Mapping[str, Any], name: str) -> str:
    p = each.get(f"{name}_probability")
    return in_words(each[name]) + ("" if p is None else f" (p {p_value(p)})")


def in_words(value: Any) -> str:
    """An answer or a label in a cell: several are told one by one."""
    return (", ".join(map(str, value)) or "-") if isinstance(value, list) else str(value)


Confusion = Mapping[str, Mapping[str, int]]

MOST_SHOWN = 10  # labels of a matrix in 80 columns
_MOST_INCHES, _LONGEST = 20.0, 28  # of a picture's cells, and the characters of a name in it
FILES = ("confusion.csv", "confusion.png", "confusion.svg")


def matrix(confusion: Confusion) -> tuple[list[str], list[list[int]]]:
    """The labels that some row has or is given, and their rows by answer."""
    given = {answer for answers in confusion.values() for answer in answers}
    names = [name for name, answers in confusion.items() if answers or name in given]
    return names, [[confusion[one].get(other, 0) for other in names] for one in names]


def mistakes(confusion: Confusion) -> list[tuple[str, str, int]]:
    """(label, answer, rows) of wrong answers, the most frequent first."""
    found = [(one, other, n) for one, answers in confusion.items() for other, n in answers.items() if other != one]
    return sorted(found, key=lambda each: -each[2])


def write_confusion(confusion: Confusion, title: str, folder: Path) -> list[str]:
    """Write ``FILES`` into a folder, the csv alone where matplotlib is not installed; what was written."""
    names, counts = matrix(confusion)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["label \\ answer", *names])
    table.writerows([name, *row] for name, row in zip(names, counts, strict=True))
    write_atomically(folder / FILES[0], written.getvalue().encode())
    if importlib.util.find_spec("matplotlib") is None:  # as on a board
        return [FILES[0]]
    from edgepeft.common import plotting

    with plotting.styled():
        figure, axes = plotting.one(*confusion_inches(names))
        plot_confusion(axes, names, counts)
        plotting.title(axes, title, f"{sum(map(sum, counts)):,} rows")
        plotting.save(figure, folder, Path(FILES[1]).stem)
    return list(FILES)


def confusion_inches(names: Sequence[str]) -> tuple[float, float]:
    """A picture's width and height."""
    longest = min(_LONGEST, max(map(len, names)))
    cells = _cell_inches(names) * len(names)
    return cells + 0.085 * longest + 1.9, cells + (0.085 * longest if _upright(names) else 0.2) + 1.1


def _cell_inches(names: Sequence[str]) -> float:
    return min(0.6, _MOST_INCHES / len(names))


def _upright(names: Sequence[str]) -> bool:
    return 0.095 * min(_LONGEST, max(map(len, names))) > _cell_inches(names)


def plot_confusion(axes: Axes, names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Each cell is coloured by its share of the label's rows, and has their number."""
    from edgepeft.common import plotting

    shares = [[n / sum(row) if sum(row) else None for n in row] for row in counts]
    side = _cell_inches(names)
    how: dict[str, Any] = {"numbers": counts, "missing": plotting.MISSING, "upright": _upright(names)}
    mesh = plotting.heat_map(axes, shares, names, names, lowest=0.0, highest=1.0, cell=(side, side), **how)
    axes.set_aspect("equal")
    axes.set(xlabel="answer", ylabel="label")
    bar = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label("share of the label's rows")

"""A confusion matrix, label -> answer -> rows, in the order of the labels: as rows, as csv, as a picture."""

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

__all__ = ["FILES", "MOST_SHOWN", "confusion_inches", "matrix", "mistakes", "plot_confusion", "write_confusion"]

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

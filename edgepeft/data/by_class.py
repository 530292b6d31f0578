"""What a result says: figures with intervals; each class's precision, recall and F1, the confusion matrix; worst rows.

It opens with the figures that fit the task and its rows, each with its 95 % interval.  Of a share k / n of rows it is
Wilson's (1927): (k + z^2 / 2 -+ z sqrt(k (n - k) / n + z^2 / 4)) / (n + z^2).  Of any other score it is that of the
percentile bootstrap (Efron, 1979): the 2.5th and the 97.5th percentile of the scores of 1,000 draws of n rows, with
replacement and from a fixed seed.

Of a class, precision is the share of right ones among the rows that were given it, recall among those that have it, F1
their harmonic mean (van Rijsbergen, 1979); what would be 0 / 0 is 0.  A residual is the answer less the label.

Rows that belong together are scored together: each part of the data for itself, as MNLI's matched and mismatched rows
(Williams et al., 2018, arXiv:1704.05426), and questions with several answers.  Of MultiRC each row is an answer, of
which any may be right: SuperGLUE has F1 over all answers (F1a) and the share of questions of which every answer is
judged rightly (EM; Wang et al., 2019, arXiv:1905.00537, section 3).

The tables and the picture that show all this, in every report, stand below.
"""

from __future__ import annotations

import csv
import heapq
import importlib.util
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import DataError
from edgepeft.data.columns import column_names
from edgepeft.data.pattern import cell_at
from edgepeft.data.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from edgepeft.tasks.base import TaskType

DRAWS = 1_000
MIN_ROWS = 10  # of a bootstrap: fewer have too few different draws
_Z = 1.9599639845400536  # statistics.NormalDist().inv_cdf(0.975)
_ENDS = (2.5, 97.5)


def headline_metrics(kind: TaskType, targets: Any, asked: str | None) -> list[str]:
    """Name the metric that was asked for, if any, and those that fit."""
    return list(dict.fromkeys([*([asked] if asked else []), *kind.fitting(targets)]))


def headline(kind: TaskType, targets: Any, outputs: Any, asked: str | None) -> list[dict[str, Any]]:
    """Return each ``metric``, how it is ``averaged``, its ``score``, ``low``, ``high`` and ``interval``'s method."""
    found = []
    for name in headline_metrics(kind, targets, asked):
        of, score = kind.metric_of(name), kind.score(name, targets, outputs)
        interval = _interval(kind, name, targets, outputs)
        found.append({"metric": name, "averaged": of.averaged, "score": score, **interval._asdict()})
    return found


def _interval(kind: TaskType, name: str, targets: Any, outputs: Any) -> Interval:
    metric, n = kind.metric_of(name), len(targets)
    if metric.of_sums is not None:
        rows = np.asarray(metric.function(kind, targets, outputs), np.float64)
        share = rows.ndim == 1 and np.isin(rows, (0, 1)).all()
        return wilson(int(rows.sum()), n) if share else bootstrap_of_sums(rows, metric.of_sums)
    if not metric.resampled:
        return Interval()
    drawn = kind.resampled(outputs)
    return bootstrap(lambda places: kind.score(name, take(targets, places), take(drawn, places)), n)


def take(values: Any, places: Any) -> Any:
    """Take some of targets or outputs, which are lists if they are texts."""
    return [values[i] for i in places] if isinstance(values, list) else values[list(places)]


class Interval(NamedTuple):
    """Both ends, and by which method: ``wilson`` or ``bootstrap``; None where there are too few rows."""

    low: float | None = None
    high: float | None = None
    interval: str | None = None


def wilson(right: int, n: int) -> Interval:
    """Return the interval of the share ``right / n``."""
    middle, half = right + _Z**2 / 2, _Z * math.sqrt(right * (n - right) / n + _Z**2 / 4)
    low, high = ((middle + sign * half) / (n + _Z**2) for sign in (-1, 1))
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def bootstrap(score: Callable[[NDArray[np.intp]], float], n: int) -> Interval:
    """Return the interval of ``score``, a function of the places of rows."""
    if n < MIN_ROWS:
        return Interval()
    source = np.random.default_rng(0)
    low, high = np.percentile([score(source.integers(n, size=n)) for _ in range(DRAWS)], _ENDS)
    return Interval(float(low), float(high), "bootstrap")


def bootstrap_of_sums(rows: NDArray[Any], of_sums: Callable[[NDArray[np.float64], int], float]) -> Interval:
    """Return the interval of a score that the sums over the rows' values [n, ...] give."""
    n = len(rows)

    def score(places: NDArray[np.intp]) -> float:
        return of_sums(np.tensordot(np.bincount(places, minlength=n).astype(np.float64), rows, 1), n)

    return bootstrap(score, n)


WORST = 10  # rows listed
_SHOWN = 160  # characters of a text


def by_class(names: Sequence[str], right: Sequence[int], given: Sequence[int], has: Sequence[int]) -> dict[str, Any]:
    """Return ``by_class`` and ``macro`` (their means), of how many rows have a label, are given it, and rightly so."""
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
    """Return the rows of the highest ``loss``, the worst first."""
    return [dict(row) for row in heapq.nlargest(WORST, rows, key=lambda row: row["loss"])]


def shown_row(row: Row, label: Any, answer: Any, loss: float, more: Mapping[str, Any]) -> dict[str, Any]:
    """Show where a row stands, how its text begins, what is right and what was answered."""
    text = " ".join((row.sentence1 + (f" / {row.sentence2}" if row.sentence2 else "")).split())
    return {"row": row.short, "text": text[:_SHOWN], "label": label, "answer": answer, "loss": loss, **more}


def mislabelled(
    doubted: Sequence[tuple[int, Mapping[str, Any]]], shown: Callable[[int], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the likeliest ``mislabelled`` rows, and the number of all as ``mislabelled_rows``.

    ``doubted`` has the place of each and what speaks against its label, ``shown`` gives the row of a place.
    """
    worst = [(shown(place), of) for place, of in doubted[:WORST]]
    told = [{"row": row["row"], "text": row["text"], **of} for row, of in worst]
    return {"mislabelled_rows": len(doubted), "mislabelled": told}


def without_texts(errors: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what rows say, for a file that is handed on."""
    lists = ("worst", "mislabelled")
    kept = {name: [{k: v for k, v in row.items() if k != "text"} for row in errors.get(name, ())] for name in lists}
    return {name: kept.get(name, value) for name, value in errors.items()}


_OF_QUESTION = ("paragraph", "question")  # of SuperGLUE's ``idx``, which also numbers the answer


@dataclass
class Groups:
    """Which part and which question each row is of, by the columns ``by`` and ``question``.

    Where no question is asked for but ``idx``, rows whose ``idx`` has paragraph, question and answer say theirs.
    """

    by: str | None = None
    question: tuple[str, ...] = ()
    _parts: dict[str, list[int]] = field(default_factory=dict)  # the places of the rows of each
    _questions: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    _n: int = 0  # rows

    @property
    def asked(self) -> bool:
        """True if rows must have columns beside their texts and labels."""
        return bool(self.by or self.question)

    def add(self, rows: Iterable[Row]) -> None:
        """Note what rows belong to."""
        for row in rows:
            if self.by:
                self._parts.setdefault(_value(row, self.by), []).append(self._n)
            index, question = (row.others or {}).get("idx"), tuple(_value(row, column) for column in self.question)
            by_idx = self.question in ((), ("idx",))
            if by_idx and isinstance(index, Mapping) and {*_OF_QUESTION, "answer"} <= index.keys():
                question = tuple(str(index[name]) for name in _OF_QUESTION)
            if question:
                self._questions.setdefault(question, []).append(self._n)
            self._n += 1

    def scores(self, score: Callable[[Sequence[int]], float], right: Callable[[int], bool] | None) -> dict[str, Any]:
        """Return what there is of ``parts``, name -> score and rows, and ``questions``, their exact match and number.

        ``score`` is of the rows of these places, ``right`` says whether a row is; None if no row is right or wrong.
        """
        found: dict[str, Any] = {}
        if self._parts:
            found["parts"] = {name: {"score": score(of), "rows": len(of)} for name, of in self._parts.items()}
        if self._questions and right is not None:
            each = [float(all(map(right, of))) for of in self._questions.values()]
            found["questions"] = {"exact_match": float(np.mean(each)), "questions": len(each)}
        return found


def _value(row: Row, column: str) -> str:
    others = row.others or {}
    try:
        return str(cell_at(others, column))
    except KeyError:
        found = ", ".join(column_names(others))
        raise DataError(f"{row.where}: there is no column {column}. Found columns: {found}.") from None


Rows = tuple[list[str], list[list[str]]]
"""Head and rows of a table."""

_MIN = 0.001


def score_text(value: float | None) -> str:
    """Show a score, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def p_value(p: float) -> str:
    """Show a p-value: ``0.031``, or ``< 0.001``."""
    return f"< {_MIN}" if p < _MIN else score_text(p)


def metric_title(metric: str) -> str:
    """Show a metric in words."""
    return metric.replace("_", " ").replace("f1", "F1")


def headline_rows(found: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> Rows:
    """List each figure with its interval, beside it the baselines', and the p of those that were compared."""
    rows = []
    for each in found:
        between = "-" if each["low"] is None else f"{score_text(each['low'])} to {score_text(each['high'])}"
        beside = (score_text(of["scores"].get(each["metric"])) for of in baselines.values())
        rows.append([metric_title(each["metric"]), score_text(each["score"]), between, *beside])
    if any("p" in of for of in baselines.values()):
        rows.append(["McNemar's p", "", "", *(p_value(of["p"]) for of in baselines.values())])
    return ["figure", "score", "95 % interval", *baselines], rows


def class_rows(errors: Mapping[str, Any]) -> Rows:
    """List the classes that rows have, lowest F1, then most rows, first; or the residuals, or scores of texts."""
    if "texts" in errors:
        return figure_rows(errors["texts"])
    if "residuals" in errors:
        return figure_rows(errors["residuals"], "residual")
    if not errors.get("by_class"):  # a kind of task without labels
        return figure_rows(errors["figures"])
    rows = [
        [name, *(score_text(of[key]) for key in ("precision", "recall", "f1")), f"{of['support']:,}"]
        for name, of in sorted(errors["by_class"].items(), key=lambda item: (item[1]["f1"], -item[1]["support"]))
        if of["support"]
    ]
    return ["label", "precision", "recall", "F1", "rows"], rows


def labels_without_rows(errors: Mapping[str, Any]) -> list[str]:
    """List the labels that no row has."""
    return [name for name, of in (errors.get("by_class") or {}).items() if not of["support"]]


def figure_rows(figures: Mapping[str, float], head: str = "score") -> Rows:
    """List figures that are not of classes."""
    return [head, ""], [[metric_title(name), score_text(value)] for name, value in figures.items()]


def certainty_figures(calibration: Mapping[str, Any]) -> Rows:
    """List how far probabilities can be believed, and what is guaranteed of the answers that are sure."""
    error, kept = calibration["ece"], dict(calibration.get("promise") or {})
    figures = {"temperature": calibration["temperature"], "calibration error without it": error["before"]}
    figures |= {"calibration error with it": error["after"]}
    return figure_rows(figures | {name: value for name, value in kept.items() if value is not None}, "certainty")


def row_lines(found: Sequence[Mapping[str, Any]], other: str = "answer") -> list[tuple[str, str]]:
    """Tell rows one by one: where each stands, its label and ``other``, with their probabilities or else the loss; and
    its text, if that is known."""
    lines = []
    for each in found:
        sides = []
        for name in ("label", other):
            p = each.get(f"{name}_probability")
            sides.append(f"{name} {answer_text(each[name])}" + ("" if p is None else f" (p {p_value(p)})"))
        if each.get("label_probability") is None:
            sides.append(f"loss {score_text(each['loss'])}")
        lines.append((f"{each['row']}: {', '.join(sides)}", each.get("text", "")))
    return lines


def answer_text(value: Any) -> str:
    """Show an answer or a label in a cell; several are told one by one."""
    return (", ".join(map(str, value)) or "-") if isinstance(value, list) else str(value)


Confusion = Mapping[str, Mapping[str, int]]

MAX_SHOWN = 10  # labels of a matrix in 80 columns
_MAX_INCHES, _LONGEST = 20.0, 28  # of a picture's cells, and the characters of a name in it
FILES = ("confusion.csv", "confusion.png", "confusion.svg")


def matrix(confusion: Confusion) -> tuple[list[str], list[list[int]]]:
    """Return the labels that some row has or is given, and their rows by answer."""
    given = {answer for answers in confusion.values() for answer in answers}
    names = [name for name, answers in confusion.items() if answers or name in given]
    return names, [[confusion[one].get(other, 0) for other in names] for one in names]


def mistakes(confusion: Confusion) -> list[tuple[str, str, int]]:
    """List (label, answer, rows) of wrong answers, the most frequent first."""
    found = [(one, other, n) for one, answers in confusion.items() for other, n in answers.items() if other != one]
    return sorted(found, key=lambda each: -each[2])


def write_confusion(confusion: Confusion, title: str, folder: Path) -> list[str]:
    """Write ``FILES`` into a folder, the csv alone if matplotlib is not installed; return what was written."""
    names, counts = matrix(confusion)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["label \\ answer", *names])
    table.writerows([name, *row] for name, row in zip(names, counts, strict=True))
    write_atomically(folder / FILES[0], written.getvalue().encode())
    if importlib.util.find_spec("matplotlib") is None:  # as on a board
        return [FILES[0]]
    from edgepeft.common import plotting

    with plotting.plot_style():
        figure, axes = plotting.new_figure(*confusion_inches(names))
        plot_confusion(axes, names, counts)
        plotting.title(axes, title, f"{sum(map(sum, counts)):,} rows")
        plotting.save(figure, folder, Path(FILES[1]).stem)
    return list(FILES)


def confusion_inches(names: Sequence[str]) -> tuple[float, float]:
    """Return a picture's width and height."""
    cell, name, upright = _cell_inches(names)
    side = cell * len(names)
    return side + name + 1.9, side + (name if upright else 0.2) + 1.1


def _cell_inches(names: Sequence[str]) -> tuple[float, float, bool]:
    """Return a cell's side, the length of the longest name, and whether names stand upright."""
    cell, longest = min(0.6, _MAX_INCHES / len(names)), min(_LONGEST, max(map(len, names)))
    return cell, 0.085 * longest, 0.095 * longest > cell


def plot_confusion(axes: Axes, names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Colour each cell by its share of the label's rows, and write their number into it."""
    from edgepeft.common import plotting

    shares = [[n / sum(row) if sum(row) else None for n in row] for row in counts]
    cell, _, upright = _cell_inches(names)
    how: dict[str, Any] = {"numbers": counts, "missing": plotting.MISSING, "upright": upright}
    mesh = plotting.heat_map(axes, shares, names, names, lowest=0.0, highest=1.0, cell=(cell, cell), **how)
    axes.set_aspect("equal")
    axes.set(xlabel="answer", ylabel="label")
    axes.figure.colorbar(mesh, ax=axes).set_label("share of the label's rows")

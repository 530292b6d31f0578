"""How far a task's probabilities can be believed: a reliability diagram (Guo et al., 2017, figure 1), and promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgepeft.bench.report.pictures import Cell, Section
from edgepeft.bench.result.parts import Part
from edgepeft.data.by_class import certainty_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Calibration", "reliability"]

_BLUE, _GREY = "#0072b2", "#888888"


class Bin(Part):
    """Rows whose answers are about as probable: how many, the mean of the probabilities, the share that is right."""

    rows: int
    confidence: float
    accuracy: float


class BeforeAfter(Part):
    """Expected calibration error, without a temperature and with it."""

    before: float
    after: float


class Bins(Part):
    """The same of the bins."""

    before: list[Bin]
    after: list[Bin]


class Kept(Part):
    """What a promise came to on these rows."""

    coverage: float | None = None
    risk: float | None = None
    threshold: float
    unsure: float
    accuracy_of_sure: float | None = None
    covered: float | None = None


class Calibration(Part):
    """As `edgepeft eval --json` has it, and the errors of a delta's card."""

    temperature: float
    ece: BeforeAfter
    bins: Bins
    promise: Kept | None = None


def reliability(key: str, name: str, task: str, found: Calibration) -> Iterator[Section]:
    """The diagram with its bins, and a table of what is promised, where something is."""

    def draw(figure: Figure) -> None:
        axis = figure.add_subplot()
        axis.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle=":", label="as probable as it is right")
        for which, colour, marker in (("before", _GREY, "s--"), ("after", _BLUE, "o-")):
            bins = [each for each in getattr(found.bins, which) if each.rows]
            places = [each.confidence for each in bins], [each.accuracy for each in bins]
            error = getattr(found.ece, which)
            axis.plot(*places, marker, color=colour, label=f"{_WITH[which]}: error {error:.4f}")
        axis.set(xlabel="probability of the answer", ylabel="share of answers that are right", xlim=(0, 1), ylim=(0, 1))
        axis.legend(frameon=False)

    n = sum(each.rows for each in found.bins.after)
    text = (
        f"{name}. {n} rows in bins of equal width; temperature {found.temperature:.3f}, expected calibration error "
        f"{found.ece.before:.4f} without it and {found.ece.after:.4f} with it."
    )
    rows: list[tuple[Cell, ...]] = [
        (_WITH[which], each.rows, round(each.confidence, 4), round(each.accuracy, 4))
        for which in _WITH
        for each in getattr(found.bins, which)
        if each.rows
    ]
    head = ("probabilities", "rows", "mean probability", "share right")
    yield Section(key, f"{task}: reliability", text, head, rows, draw, (5.0, 4.5))
    if found.promise is not None:
        columns, cells = certainty_figures(found.model_dump(exclude_none=True))
        yield Section(f"{key}-kept", f"{task}: unsure answers", f"{name}. {n} rows.", tuple(columns), cells)


_WITH = {"before": "without temperature", "after": "with temperature"}

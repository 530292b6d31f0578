"""Sweeps: their tables, scores against what is trained and stored, learning curves, rates, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import mean
from typing import TYPE_CHECKING, Any

from edgepeft.bench.report.page import Cell, Section
from edgepeft.sweep.folder import Sweep
from edgepeft.sweep.table import Arm, Column, columns, deviation, entries, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = {"parameters": "trained parameters", "bytes": "bytes of the delta's tensors"}  # by an arm's attributes
_MARKS = "osD^vPX*<>ph"
_FEW_DECADES = 100.0  # of a scale on which 2 and 5 are ticks too
_BY_EVAL = "Of each method the rate whose evaluation rows score best in the mean of the seeds; scores are of test rows"


def swept(sweeps: Sequence[tuple[str, Sweep]]) -> Iterator[Section]:
    """Of each sweep its tables; learning curves, where there are sizes; rates, where a method has several; its runs."""
    for number, (name, sweep) in enumerate(sweeps):
        found = columns(sweep)
        for place, ((backbone, size), group) in enumerate(grouped(found).items()):
            key, of = f"sweep-{number}-{place}", f"{backbone}, {size if size.endswith('%') else f'{size} rows'}"
            yield _table(key, name, of, sweep, group)
            for what in _UNITS:
                yield _against(key, name, of, group, what)
        if len({column.place[2] for column in found}) > 1:
            text = f"{name}. Test scores of the chosen rates; bars are a deviation over seeds."
            for n, (backbone, data) in enumerate(dict.fromkeys(column.place[:2] for column in found)):
                own = [column for column in found if column.place[:2] == (backbone, data)]
                arms = [arm for column in own for arm in column.chosen.values()]
                key, title = f"sweep-{number}-sizes-{n}", f"Learning curves: {data}, {backbone}"
                yield _lines(key, title, text, "training rows", arms, of="rows")
        text = f"{name}. Test scores at each learning rate; bars are a deviation over seeds."
        for n, column in enumerate(found):
            times = Counter(arm.method for arm in column.arms)
            several = sorted((arm for arm in column.arms if times[arm.method] > 1), key=lambda arm: arm.rate)
            if several:
                backbone, data, size = column.place
                key, title = f"sweep-{number}-rates-{n}", f"Rates: {data}, {size}, {backbone}"
                yield _lines(key, title, text, "learning rate", several, of="rate")
        yield _runs(f"sweep-{number}-runs", name, sweep)


def _table(key: str, name: str, of: str, sweep: Sweep, group: Sequence[Column]) -> Section:
    header, rows = entries(group)
    notes = ["* worse than the best of its column beyond chance: paired bootstrap over test rows, 5 %"]
    published = sweep.plan.published
    if published is not None:
        names = [column.place[1] for column in group]
        for method, scores in published.scores.items():
            shown = [f"{100 * scores[data]:.2f}" if data in scores else None for data in names]
            rows.append([f"{method}, published", *shown, *[None] * (len(header) - 1 - len(names))])
        notes.append(f"published: {published.source}")
    text = f"{name}. {_BY_EVAL}, in percent, with the deviation over so many seeds, and the rate that was chosen."
    return Section(key, f"Scores: {of}", text, header, rows, notes=notes)


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(100 * score, 2)


def _against(key: str, name: str, of: str, group: Sequence[Column], what: str) -> Section:
    """The mean over the data sets on which every method ran, against a property of the deltas."""
    unit = _UNITS[what]
    names = list(dict.fromkeys(method for column in group for method in column.chosen))
    whole = [column for column in group if set(names) <= set(column.chosen)] or list(group[:1])
    points = {}
    for method in names:
        if all(method in column.chosen for column in whole):
            arms = [column.chosen[method] for column in whole]
            points[method] = mean(getattr(arm, what) for arm in arms), mean(arm.score for arm in arms)

    def draw(axes: Axes) -> None:
        for n, (method, (size, score)) in enumerate(points.items()):
            axes.plot([size], [100 * score], _MARKS[n % len(_MARKS)], label=method)
        _logarithmic(axes, [size for size, _ in points.values()])
        axes.set_xlabel(unit)
        axes.set_ylabel("mean score, %")
        _legend(axes)

    sets = ", ".join(column.place[1] for column in whole)
    text, header = f"{name}. The mean test score over {sets}, against {unit}.", ("method", unit, "mean score, %")
    rows = [(method, round(size), _rounded(score)) for method, (size, score) in points.items()]
    return Section(f"{key}-{what}", f"Scores and {unit}: {of}", text, header, rows, draw, (7.0, 4.5))


def _lines(key: str, title: str, text: str, x: str, arms: Sequence[Arm], *, of: str) -> Section:
    """A line a method, through the scores at what its arms have as ``of``."""
    lines: dict[str, list[Arm]] = {}
    for arm in arms:
        lines.setdefault(arm.method, []).append(arm)
    lines = {method: sorted(points, key=attrgetter(of)) for method, points in lines.items()}

    def draw(axes: Axes) -> None:
        for n, (method, points) in enumerate(lines.items()):
            scores, at = [100 * arm.score for arm in points], [getattr(arm, of) for arm in points]
            bars = [100 * (deviation(arm.tests) or 0.0) for arm in points]
            axes.errorbar(at, scores, bars, fmt=f"{_MARKS[n % len(_MARKS)]}-", capsize=2, label=method)
        _logarithmic(axes, [getattr(arm, of) for arm in arms])
        axes.set_xlabel(x)
        axes.set_ylabel("test score, %")
        _legend(axes)

    rows: list[Sequence[Cell]] = []
    for method, arm in ((method, arm) for method, points in lines.items() for arm in points):
        at = getattr(arm, of)  # a rate as text: a page rounds numbers to three places
        numbers = _rounded(arm.score), _rounded(deviation(arm.tests)), len(arm.tests)
        rows.append((method, at if at >= 1 else f"{at:g}", *numbers))
    return Section(key, title, text, ("method", x, "score, %", "deviation", "seeds"), rows, draw, (7.0, 4.5))


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Ticks are plain numbers: texts of our pictures are never read as mathematics."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    few = max(values) < _FEW_DECADES * min(values)
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _runs(key: str, name: str, sweep: Sweep) -> Section:
    """Every run, so that each number can be traced to the card it is from."""
    rows: list[Sequence[Cell]] = []
    for cell in sweep.cells:
        outcome, scores = sweep.outcome(cell), dict[str, Any]()
        state = sweep.state(cell)
        if state == "done":
            scores = sweep.card(cell).metrics
        elif outcome is not None and outcome.score is not None:
            scores = {"eval": outcome.score}
        numbers = (f"{cell.rate:g}", cell.rows, str(cell.seed), state, scores.get("eval"), scores.get("test"))
        rows.append((cell.name, cell.backbone, cell.data, cell.method, *numbers))
    header = ("run", "backbone", "data", "method", "rate", "rows", "seed", "state", "eval rows", "test rows")
    text = (
        f"{name}. A run's name is the hash of what was asked of it: its folder in runs/, or its line of results.jsonl."
    )
    return Section(key, "Runs", text, header, rows)

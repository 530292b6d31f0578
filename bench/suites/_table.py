"""A suite's result as a table, and as a picture of every figure beside its target."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.suites._result import SuiteResult, SuiteRow, SuiteVerdict
from edgepeft.bench.report.tables import limits_in_force
from edgepeft.common.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    SuiteVerdict.MET: "green",
    SuiteVerdict.UNSURE: "yellow",
    SuiteVerdict.MISSED: "red",
    SuiteVerdict.NONE: "",
}
_FORMATS = (".png", ".svg")
_WRAPPED = 46  # characters of a bar's name in a line
_BAR, _TARGET, _WHISKER, _GREY = "#0072b2", "#d55e00", "black", "#777777"  # of Okabe and Ito's palette


def suite_table(result: SuiteResult) -> RenderableType:
    """Rows, then what they were measured under."""
    weights = "random" if result.model.random_weights else "its own"
    title = f"{result.title}: {result.model.name}, {weights} weights, under {result.profile.name}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("what", overflow="fold")
    table.add_column("against", overflow="fold")
    for header in ("figure", "promised"):
        table.add_column(header, justify="right")
    table.add_column("")
    for row in result.rows:
        verdict = Text(row.verdict, _COLOURS[row.verdict])
        table.add_row(*map(Text, (row.what, row.peer or "-", figure_of(row), str(row.target or "-"))), verdict)
    notes = [f"{row.what}: {row.note}" for row in result.rows if row.note]
    return Group(table, *map(Text, [*suite_conditions(result), *notes]))


def figure_of(row: SuiteRow) -> str:
    """The figure with its interval and unit."""
    if row.value is None:
        return "-"
    digits = 3 if row.unit in ("x", "s") else 1 if row.unit == "MB" else 2
    shown = f"{row.value:.{digits}f}"
    if row.interval:
        low, high = row.interval
        shown += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{shown} {row.unit}"


def suite_conditions(result: SuiteResult) -> list[str]:
    """Host, limits in force, threads and rounds, in words."""
    host, profile = result.host, result.profile
    rate = f", GEMM {host.gemm_gflops:.0f} GFLOP/s" if host.gemm_gflops else ""
    lines = [f"host: {host.cpu}{rate} on {result.threads} threads; {result.rounds} rounds at most"]
    if not profile.limits.in_force:
        return [*lines, "no limits were in force: the profile says the threads alone"]
    return [*lines, limits_in_force(profile), *profile.notes]


def check_picture(path: Path) -> None:
    """See that a picture can be written there, before anything is measured."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"a picture is {' or '.join(_FORMATS)}, not {path.name}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackage("pictures need matplotlib: pip install 'edgepeft[train]'.")


def draw_suite(result: SuiteResult, path: Path) -> None:
    """Write a PNG or SVG: one panel for each unit, or memory over the number of tasks."""
    shown = [row for row in result.rows if row.value is not None]
    if not shown:
        raise UsageError("no row of this suite has a figure to draw.")
    from matplotlib.figure import Figure

    from edgepeft.common import plotting

    curves = [row for row in shown if "tasks" in row.samples]
    ratios = [row for row in shown if row.unit == "x" and row not in curves]
    panels = [part for part in (curves, ratios) if part]
    heights = [6.0 if part is curves else 0.8 + 0.42 * len(part) for part in panels]
    with plotting.plot_style():
        figure = Figure(figsize=(10, sum(heights) + 1.2), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, axis in zip(panels, axes, strict=True):
            (_draw_curves if part is curves else _draw_ratios)(axis, part)
        host = "\n".join(suite_conditions(result)[:2])
        figure.suptitle(f"{result.title}, {result.model.name}\n{host}", fontsize=9)
        plotting.save_as(figure, path)


def _draw_curves(axis: Axes, rows: Sequence[SuiteRow]) -> None:
    """Memory by the number of tasks, a line for each side."""
    for peer in dict.fromkeys(row.peer for row in rows):
        own = [row for row in rows if row.peer == peer]
        tasks, used = [row.samples["tasks"][0] for row in own], [row.value or 0.0 for row in own]
        name = "edgepeft, one bundle" if peer is None else f"{peer}: one merged model a task"
        axis.plot(tasks, used, marker="o", label=name, color=_BAR if peer is None else _TARGET)
    axis.set(xlabel="resident tasks", ylabel="memory (PSS), MB", xscale="log", ylim=(0, None))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.legend(frameon=False)
    axis.grid(visible=True, color=_GREY, alpha=0.25)


def _draw_ratios(axis: Axes, rows: Sequence[SuiteRow]) -> None:
    """A bar for each ratio with its interval, its target as a line across it."""
    for place, row in enumerate(rows):
        value = row.value or 0.0
        axis.barh(place, value, height=0.6, color=_BAR)
        if row.interval:
            low, high = row.interval
            axis.plot([low, high], [place, place], color=_WHISKER, linewidth=2)
        if row.target:
            axis.plot([row.target.value] * 2, [place - 0.42, place + 0.42], color=_TARGET, linewidth=2)
        ends = [value, *(row.interval or ()), *([row.target.value] if row.target else ())]
        axis.annotate(f"  {value:.2f}", (max(ends), place), va="center")
    names = [row.what + (f", against {row.peer}" if row.peer else "") for row in rows]
    axis.set_yticks(range(len(rows)), [fill(name, _WRAPPED) for name in names], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="ratio; orange: what is promised")
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)

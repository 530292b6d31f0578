"""A learning curve: what the same run scores on parts of its training rows; the other rows are the same for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepeft.common.errors import requiring
from edgepeft.data.parts import TaskData, split_rows
from edgepeft.data.training_loop.run import TrainingLoopResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE = "curve"  # of a card's metrics
LOOKS = ("o-", "s--", "^:")
SHARES = (0.1, 0.2, 0.4, 0.7)  # of the training rows; the run itself has all


def smaller(data: TaskData, seed: int) -> Iterator[TaskData]:
    """The data with fewer and fewer of its training rows left out, every label among them; each holds those before."""
    strata = data.task_kind.strata(data.train)
    least = len(set(strata))
    for n in sorted({max(least, round(share * len(data.train))) for share in SHARES} - {len(data.train)}):
        taken, _ = split_rows(data.train, n, f"curve {seed}", strata=strata, least=1)
        yield replace(data, train=taken)


def point_of(data: TaskData, result: TrainingLoopResult | None) -> dict[str, Any]:
    """Rows and scores of one size; None stands for a run that diverged at once, and for its scores."""
    metrics = {} if result is None else result.metrics
    baselines = {name: found["test"] for name, found in metrics.get("baselines", {}).items()}
    scores = {"eval": metrics.get("eval"), "test": metrics.get("test")}
    return {"rows": len(data.train), **scores, "baselines": baselines}


def draw_curve(metrics: Mapping[str, Any], title: str, folder: Path) -> None:
    """Draw a card's ``metrics`` as ``curve.png`` and ``curve.svg`` in a folder."""
    with requiring("train", "the picture of a learning curve"):
        from edgepeft.common import plotting

    with plotting.plot_style():
        figure, axes = plotting.new_figure(6.4, 4.2)
        plot_curve(axes, metrics)
        plotting.title(axes, title, f"on the same {metrics['n_test']} test rows at every size")
        plotting.save(figure, folder, CURVE)


def plot_curve(axes: Axes, metrics: Mapping[str, Any]) -> None:
    """Draw the scores over the number of training rows, the baselines' among them."""
    points = metrics[CURVE]
    lines = {"this delta": [point["test"] for point in points]}
    for name in points[-1]["baselines"]:
        lines[name] = [point["baselines"].get(name) for point in points]
    for (name, scores), look in zip(lines.items(), LOOKS, strict=False):
        known = [(point["rows"], score) for point, score in zip(points, scores, strict=True) if score is not None]
        axes.plot(*zip(*known, strict=True), look, label=name)
    axes.set_xlabel("training rows")
    axes.set_ylabel(metrics["metric"])
    axes.legend(frameon=False)

"""Ablation of layers (Houlsby et al., 2019, arXiv:1902.00751, section 3.6, figure 6, left and centre).

Some layers' trained modules are left out and the delta is scored again, without training: every span
[i..j] of its layers, so single layers on the diagonal and all of them in the corner.  What the delta
replaces in the backbone (LayerNorms, biases) and its head stay as trained; only modules are left out.
The figure shows the loss against the whole delta, here the score itself is shown.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich import box
from rich.console import RenderableType
from rich.table import Column, Table

from edgepeft.bundle.delta import Delta
from edgepeft.common import plotting
from edgepeft.data.by_class import score_text
from edgepeft.data.training_loop.engine import score_rows
from edgepeft.training.engine import logits_of
from edgepeft.training.inspection.base import Advance, Inspection, InspectionTarget

HUNDRED = "× 100"  # noqa: RUF001


class Ablation(Inspection):
    """The score without each span of layers."""

    name: ClassVar[str] = "ablation"
    shows: ClassVar[str] = "the score after removing the modules of every span of layers"

    def why_not(self, delta: Delta) -> str | None:
        return None if delta.adapted_layers() else "it has no modules in layers that could be removed"

    def passes(self, delta: Delta) -> int:
        n = len(delta.adapted_layers())
        return 1 + n * (n + 1) // 2  # the whole delta, and each span

    def look(self, target: InspectionTarget, advance: Advance) -> dict[str, Any]:
        """``spans``: {first, last, score}, both ends left out; ``whole``, ``majority`` to compare them with."""
        layers, kind, targets = target.delta.adapted_layers(), target.delta.card.task_kind, target.rows.targets
        read = partial(logits_of, target.delta, target.model, target.rows)

        def score(removed: Sequence[int]) -> float:
            with target.delta.without_layers(removed):
                return score_rows(read, target.rows, kind, target.metric, advance).score

        majority = None
        if kind.has_labels:  # the score of answering every row with what is best for all
            most = kind.majority(targets)
            majority = kind.score(target.metric, targets, np.broadcast_to(most, (len(targets), *most.shape)))
        ends = itertools.combinations_with_replacement(range(len(layers)), 2)
        return {
            "metric": target.metric,
            "rows": len(targets),
            "layers": list(layers),
            "whole": score(()),
            "majority": majority,
            "spans": [{"first": layers[i], "last": layers[j], "score": score(layers[i : j + 1])} for i, j in ends],
        }

    def draw(self, measured: Mapping[str, Any], task: str) -> dict[str, Figure]:
        """Figure 6's triangle, and its diagonal as a line."""
        return {"ablation": _triangle(measured, task), "ablation_single": _line(measured, task)}

    def table(self, measured: Mapping[str, Any]) -> RenderableType:
        table = Table(
            Column("layer", justify="right"),
            *(Column(header, justify="right") for header in ("removed alone", "with all below", "with all above")),
            title=f"{measured['metric']} on {measured['rows']} rows, whole delta {score_text(measured['whole'])}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        scores, layers = _scores(measured), measured["layers"]
        for layer in layers:
            spans = ((layer, layer), (layers[0], layer), (layer, layers[-1]))
            table.add_row(str(layer), *(score_text(scores[span]) for span in spans))
        return table


def _scores(measured: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    return {(span["first"], span["last"]): span["score"] for span in measured["spans"]}


def _beside(measured: Mapping[str, Any]) -> str:
    parts = [f"whole delta {100 * measured['whole']:.1f}"]
    if measured["majority"] is not None:
        parts.append(f"always the commonest label {100 * measured['majority']:.1f}")
    return ", ".join(parts)


def _triangle(measured: Mapping[str, Any], task: str) -> Figure:
    layers, scores = measured["layers"], _scores(measured)
    values = [[None if b < a else 100 * scores[a, b] for b in layers] for a in layers]
    cell = plotting.cell_inches(len(layers), 0.52, most=9)
    side = cell * len(layers)
    figure, axes = plotting.new_figure(max(side, 3.2) + 2.2, max(side, 2.4) + 1.7)
    shown = [100 * score for score in (*scores.values(), measured["whole"])]
    mesh = plotting.heat_map(axes, values, layers, layers, lowest=min(shown), highest=max(shown), cell=(cell, cell))
    for i in range(len(layers)):
        axes.add_patch(
            Rectangle((i, i), 1, 1, fill=False, edgecolor=plotting.RED, linewidth=1.8, zorder=3, clip_on=False)
        )
    axes.set_xlabel("last layer removed")
    axes.set_ylabel("first layer removed")
    plotting.title(
        axes,
        f"{task}: {measured['metric']} after removing the modules of layers",
        f"{measured['rows']} rows; {_beside(measured)}\noutlined: one layer removed; top right: all",
    )
    figure.colorbar(mesh, ax=axes, label=f"{measured['metric']} {HUNDRED}", shrink=0.85)
    return figure


def _line(measured: Mapping[str, Any], task: str) -> Figure:
    """How far each layer alone moves the score, as a drop from the whole delta's."""
    layers, scores = measured["layers"], _scores(measured)
    whole, places = 100 * measured["whole"], range(len(layers))
    singles = [100 * scores[layer, layer] for layer in layers]
    figure, axes = plotting.new_figure(max(6.6, 0.5 * len(layers) + 1.6), 3.9)
    axes.axhline(whole, color=plotting.RED, linewidth=1.5, label="whole delta")
    axes.vlines(places, whole, singles, color=plotting.BLUE, linewidth=1.5)
    axes.plot(places, singles, color=plotting.BLUE, marker="o", linestyle="none", label="without that layer's modules")
    for place, value in zip(places, singles, strict=True):
        offset, side = ((0, 6), "bottom") if value >= whole else ((0, -6), "top")
        axes.annotate(
            f"{value:.1f}", (place, value), offset, textcoords="offset points", ha="center", va=side, fontsize=8
        )
    axes.set_xticks(places, [str(layer) for layer in layers])
    axes.set_xlim(-0.6, len(layers) - 0.4)
    axes.set_xlabel("layer removed")
    axes.set_ylabel(f"{measured['metric']} {HUNDRED}")
    axes.margins(y=0.25)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    plotting.title(
        axes,
        f"{task}: {measured['metric']} after removing the modules of one layer",
        f"{measured['rows']} rows; {_beside(measured)}\nwithout any module {100 * scores[layers[0], layers[-1]]:.1f}",
    )
    return figure

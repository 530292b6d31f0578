"""Which label picks which parent cell (SPARTAN, Deshpande et al., 2022, arXiv:2211.16634, section 5, figure 2).

"For each parent, we plot the ground truth label of the instance which picks that parent cell."  The
paper shows the last layer of a memory with 5 parents and 1 child each; here every layer is.  It does not
say at which position an instance picks: here it is where the head reads, the first token, or all real
tokens of the row in equal parts where the head reads their mean.  A parent is picked where it is among
the K kept, so where its weight g of eq. 3 is above zero.

Letters: L labels, N parents.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor, nn

from edgepeft.bundle.delta import Delta
from edgepeft.common import plotting
from edgepeft.data.batches import sorted_batches
from edgepeft.data.training_loop.engine import SCORED_ROWS
from edgepeft.methods.spartan import Memory
from edgepeft.training.engine import torch_batch
from edgepeft.training.inspection.base import Advance, Inspection, InspectionTarget

PICKERS = "share of a parent's picks that rows of a label make (columns sum to 1)"
WEIGHTS = "mean weight that rows of a label give a parent (rows sum to 1)"


class ParentCells(Inspection):
    """Labels against parent cells, for every layer with a memory."""

    name: ClassVar[str] = "parent_cells"
    shows: ClassVar[str] = "which label picks which parent cell of a memory"

    def why_not(self, delta: Delta) -> str | None:
        if not _memories(delta):
            return "it has no memory with parent cells"
        kind = delta.card.task_kind
        return None if kind.one_label else f"parent cells are shown by each row's label, and {kind.title} has none"

    def passes(self, delta: Delta) -> int:
        return 1  # which sees all layers

    def look(self, target: InspectionTarget, advance: Advance) -> dict[str, Any]:
        """Per layer, [L][N]: ``picked``, ``weight`` (means over a label's rows), ``pickers`` (figure 2)."""
        labels = target.delta.card.labels or ()
        memories = _memories(target.delta)
        n_rows = torch.bincount(torch.from_numpy(target.rows.targets), minlength=len(labels)).double()
        sums = _sums(target, memories, len(labels), advance)
        return {
            "reads": target.delta.card.head_reads,
            "labels": list(labels),
            "rows_of_label": [int(n) for n in n_rows],
            "layers": [
                {
                    "site": site,
                    "layer": target.delta.architecture.site(site).layer,
                    "parents": len(memory.parents),
                    "top_k": memory.top_k,
                    "picked": _plain(sums[site][0] / n_rows.unsqueeze(-1)),
                    "weight": _plain(sums[site][1] / n_rows.unsqueeze(-1)),
                    "pickers": _plain(sums[site][0] / sums[site][0].sum(0)),
                }
                for site, memory in memories.items()
            ],
        }

    def draw(self, measured: Mapping[str, Any], task: str) -> dict[str, Figure]:
        """Figure 2 of the last layer alone and of all layers, and the weights of all layers."""
        picks = f"{task}: the labels that pick a parent cell"
        weights = f"{task}: the weight of each parent cell by label"
        return {
            "parent_cells_last_layer": _panels(measured, "pickers", picks, PICKERS, last=True),
            "parent_cells": _panels(measured, "pickers", picks, PICKERS),
            "parent_weights": _panels(measured, "weight", weights, WEIGHTS),
        }

    def table(self, measured: Mapping[str, Any]) -> RenderableType:
        layers = measured["layers"]
        table = Table(
            Column("label", overflow="fold"),
            *(Column(f"layer {layer['layer']}", justify="right", overflow="fold") for layer in layers),
            title="the parent cell to which a label gives most weight, and the weight",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for i, label in enumerate(measured["labels"]):
            table.add_row(Text(label), *(_strongest(layer["weight"][i]) for layer in layers))
        return table


def _memories(delta: Delta) -> dict[str, Memory]:
    """By site, from the lowest layer."""
    memories = {site: module for site, module in delta.site_modules.items() if isinstance(module, Memory)}
    return dict(sorted(memories.items(), key=lambda item: delta.architecture.site(item[0]).layer or 0))


def _sums(
    target: InspectionTarget, memories: Mapping[str, Memory], n_labels: int, advance: Advance
) -> dict[str, Tensor]:
    """[2, L, N] float64 by site: picks and weights at the position that the head reads, summed over a label's rows."""
    delta = target.delta.eval()
    sums = {site: torch.zeros(2, n_labels, len(m.parents), dtype=torch.float64) for site, m in memories.items()}
    heard: dict[str, Tensor] = {}  # what each memory read last, by site

    def hear(site: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        heard[site] = given[0]

    with contextlib.ExitStack() as hooks, torch.inference_mode():
        for site, memory in memories.items():
            hooks.enter_context(memory.register_forward_pre_hook(partial(hear, site)))
        for chosen in sorted_batches(target.rows.lengths, SCORED_ROWS):
            inputs, targets = torch_batch(target.rows, chosen)
            delta.logits(target.model, inputs)
            for site, memory in memories.items():
                weights = memory.parent_weights(heard[site])  # [batch, length, N]
                both, pooling = ((weights > 0).float(), weights), delta.card.pooling
                read = (pooling.of_states(w, inputs["attention_mask"]) for w in both)
                for total, of_row in zip(sums[site], read, strict=True):
                    total.index_add_(0, targets, of_row.double())
            advance(len(chosen))
    return sums


def _plain(values: Tensor) -> list[list[float | None]]:
    """Six digits; None where there was nothing to divide by."""
    return [[None if math.isnan(value) else round(value, 6) for value in row] for row in values.tolist()]


def _strongest(weights: Sequence[float | None]) -> str:
    known = [(weight, -parent) for parent, weight in enumerate(weights) if weight is not None]
    if not known:
        return "-"
    weight, parent = max(known)
    return f"{-parent} ({weight:.0%})"


def _panels(measured: Mapping[str, Any], key: str, title: str, legend: str, *, last: bool = False) -> Figure:
    """A heat map for each layer, labels against parents, in rows of up to three; labels stand at the left ones only."""
    layers, labels = measured["layers"][-1:] if last else measured["layers"], measured["labels"]
    n_rows, n_columns = len(labels), layers[0]["parents"]
    across = min(len(layers), 3 if n_columns <= 10 else 2 if n_columns <= 24 else 1)
    down = -(-len(layers) // across)
    wide = plotting.cell_inches(n_columns, 0.62 if len(layers) == 1 else 0.42, most=plotting.MAX_INCHES / across)
    tall = plotting.cell_inches(n_rows, 0.42 if len(layers) == 1 else 0.34, most=plotting.MAX_INCHES / down)
    names = max(len(plotting.shortened(label)) for label in labels)
    width = max(across * max(wide * n_columns, 1.6) + 0.085 * names + 1.9, 6.8)
    height = down * (max(tall * n_rows, 0.5) + 0.55) + 1.5
    figure = Figure(figsize=(width, height), layout="constrained")
    grid, mesh = figure.subplots(down, across, squeeze=False), None
    known = [value for layer in layers for row in layer[key] for value in row]
    highest = max((value for value in known if value is not None), default=1.0)
    how: dict[str, Any] = {"highest": highest, "cell": (wide, tall), "decimals": 2, "missing": plotting.MISSING}
    for axes, layer in zip(grid.flat, layers, strict=False):
        left = axes in grid[:, 0]
        shown = labels if left else [""] * n_rows
        mesh = plotting.heat_map(axes, layer[key], shown, range(n_columns), lowest=0.0, **how)
        axes.set_title(f"layer {layer['layer']}", loc="left", fontsize=10)
        axes.set_ylabel("label" if left else "")
    for axes in list(grid.flat)[len(layers) :]:
        axes.set_axis_off()
    for column in range(across):
        grid[(len(layers) - 1 - column) // across, column].set_xlabel("parent cell")
    where = "first token" if measured["reads"] == "first_token" else "mean of the tokens"
    kept = f"{layers[0]['top_k']} of {layers[0]['parents']} kept" + ("; grey: never" if None in known else "")
    note = f"{sum(measured['rows_of_label'])} rows, read at the {where}; {kept}"
    figure.suptitle(f"{plotting.shortened(title, 90)}\n{note}", fontsize=12, x=0.01, ha="left")
    assert mesh is not None
    size: dict[str, Any] = {"aspect": 4 * width, "fraction": 0.35 / height, "shrink": 0.9}
    figure.colorbar(mesh, ax=grid, location="bottom", label=legend, **size)
    return figure

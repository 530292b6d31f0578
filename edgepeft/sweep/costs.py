"""What N tasks of a method cost on a device, predicted: time of a text, peak memory, bytes.

Each method is exported once, untrained, for what a graph costs does not depend on its values; nothing is run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgepeft.backbones.base import Role
from edgepeft.backbones.source import open_backbone
from edgepeft.card import DeltaCard
from edgepeft.delta import new_delta
from edgepeft.exporting.bundle import export_bundle
from edgepeft.graph.cost import count_run
from edgepeft.graph.cut import below
from edgepeft.methods.base import method_named
from edgepeft.prediction.roofline import Predicted, predict_seconds
from edgepeft.profiles.schema import Profile
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.cost import checked_length, example_inputs
from edgepeft.runtime.fit import bundle_fit

__all__ = ["MethodCosts", "costs_of"]

_POSED = ("source", "target", "targets", "step", "max_target_length")
_BASE = "import os; import edgepeft.runtime.runtime, psutil; print(psutil.Process().memory_info().rss)"


@dataclass(frozen=True)
class MethodCosts:
    """Of N tasks on one backbone, each asked about every text.

    ``per_minute`` texts are answered by all of them, in ``interval``, None where nothing was measured on such a device
    that could say; ``memory`` is the peak in bytes of answering one text, ``disk`` bytes of the tasks' files;
    ``shared_layers`` run once for all.
    """

    per_minute: float | None
    interval: tuple[float, float] | None
    memory: int
    disk: int
    shared_layers: int


def costs_of(
    cards: Sequence[DeltaCard], backbone: str, profile: Profile, *, tasks: int, length: int | None, work: Path
) -> list[MethodCosts]:
    """The costs of tasks with each of these cards.

    Args:
        cards: one a method, of runs that are done.
        backbone: a folder or Hub name.
        profile: the device.
        tasks: how many tasks of one method answer each text.
        length: of a text in tokens; None takes 128, or as many as the tasks were trained on.
        work: an empty folder, which is written to.

    Raises:
        UsageError: a length that the backbone does not take; a task that writes text.
    """
    opened, folders = open_backbone(backbone), []
    for n, card in enumerate(cards):
        with torch.random.fork_rng(devices=[]):
            method = method_named(card.method).from_settings(card.hyperparameters)
            delta = new_delta(
                opened,
                method,
                f"t{n}",
                card.labels,
                pairs=card.pairs,
                head=card.head,
                max_length=card.max_length,
                kind=card.kind,
                posed={name: getattr(card, name) for name in _POSED},
                stride=card.chosen.get("stride"),
            )
        (folder := work / f"delta-{n}").mkdir()
        delta.write(folder)
        folders.append(folder)
    export_bundle(opened, folders, work / "bundle")
    bundle, base = Bundle(work / "bundle"), _base()
    how: dict[str, Any] = {"tasks": tasks, "length": length, "base": base}
    return [_costs(bundle, f"t{n}", profile, **how) for n in range(len(cards))]


def _base() -> int:
    """What a process that answers takes before it opens a bundle; this one has PyTorch too."""
    done = subprocess.run([sys.executable, "-c", _BASE], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _costs(bundle: Bundle, task: str, profile: Profile, *, tasks: int, length: int | None, base: int) -> MethodCosts:
    entry = bundle.entry(task)
    length = checked_length(bundle, task, 1, length, entry.max_length)
    need = bundle_fit(bundle, profile, task, base=base, batch_size=1, length=length, finetune=False).inference
    memory, disk = need.peak_bytes + (tasks - 1) * need.task_bytes, tasks * entry.n_bytes
    depth, inputs = entry.shared_layers, example_inputs(bundle, task, 1, length)
    alone = predict_seconds(count_run(bundle.graph(task), inputs).works, profile)
    if alone.seconds is None:
        return MethodCosts(None, None, memory, disk, depth)
    once = _lower(bundle, depth, length, profile)
    shared = 0.0 if once is None or once.seconds is None else once.seconds
    seconds = alone.seconds + (tasks - 1) * max(0.0, alone.seconds - shared)
    low, high = alone.interval or (alone.seconds, alone.seconds)
    scale = alone.seconds / seconds * 60
    return MethodCosts(60 / seconds, (scale / high, scale / low), memory, disk, depth)


def _lower(bundle: Bundle, depth: int, length: int, profile: Profile) -> Predicted | None:
    """The layers that the backbone runs once for all tasks."""
    if not depth:
        return None
    outputs = bundle.architecture.sites_of(Role.LAYER_OUTPUT)
    value = bundle.manifest.backbone.sites[outputs[depth - 1].name]
    part = below(bundle.spliced(None), value)
    inputs = example_inputs(bundle, None, 1, length)
    known = {value.name for value in part.graph.input}
    return predict_seconds(count_run(part, {n: v for n, v in inputs.items() if n in known}).works, profile)

"""What N tasks of a method cost on a device: time of a text, predicted or measured, peak memory, bytes.

Each method is exported once, untrained, for what a graph costs does not depend on its values.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from edgepeft.backbones.base import Role
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.card import DeltaCard
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.deploy.cost import checked_length, example_inputs
from edgepeft.device.profile_schema import Profile
from edgepeft.device.roofline import Predicted, predict_seconds
from edgepeft.graph.cost import count_run
from edgepeft.graph.cut import below
from edgepeft.methods.base import method_named
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.fit import bundle_fit

__all__ = ["MethodCosts", "Seconds", "costs_of", "exported"]

_POSED = ("source", "target", "targets", "step", "max_target_length")
_BASE = "import os; import edgepeft.runtime.runtime, psutil; print(psutil.Process().memory_info().rss)"


class Seconds(NamedTuple):
    """Of one text by one task, and the 95 % interval of the median."""

    median: float
    interval: tuple[float, float]


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


def exported(cards: Sequence[DeltaCard], backbone: str, work: Path) -> Bundle:
    """A bundle with an untrained task t0, t1, ... for each card, of runs that are done.

    Args:
        cards: one a method.
        backbone: a folder or Hub name.
        work: an empty folder, which is written to.

    Raises:
        UsageError: a backbone or method that cannot be exported; not the backbone that was trained on.
    """
    opened, folders = open_backbone(backbone), []
    if opened.sha256 != (trained := cards[0].backbone).sha256:
        raise UsageError(f"{backbone} is not {trained.source} that the sweep trained on: its weights are others.")
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
    return Bundle(work / "bundle")


def costs_of(
    bundle: Bundle,
    profile: Profile,
    *,
    tasks: int,
    length: int | None,
    measured: Mapping[str, Seconds] | None = None,
) -> dict[str, MethodCosts]:
    """The costs of ``tasks`` tasks like each of the bundle's, by its name.

    Args:
        bundle: of ``exported``.
        profile: the device.
        tasks: how many tasks of one method answer each text.
        length: of a text in tokens; None takes 128, or as many as the tasks were trained on.
        measured: the time of a text by task; None predicts it.

    Raises:
        UsageError: a length that the backbone does not take; a task that writes text.
    """
    base = _base()
    how: dict[str, Any] = {"tasks": tasks, "length": length, "base": base}
    return {name: _costs(bundle, name, profile, (measured or {}).get(name), **how) for name in bundle.manifest.tasks}


def _base() -> int:
    """What a process that answers takes before it opens a bundle; this one has PyTorch too."""
    done = subprocess.run([sys.executable, "-c", _BASE], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _costs(
    bundle: Bundle, task: str, profile: Profile, measured: Seconds | None, *, tasks: int, length: int | None, base: int
) -> MethodCosts:
    entry = bundle.entry(task)
    length = checked_length(bundle, task, 1, length, entry.max_length)
    need = bundle_fit(bundle, profile, task, base=base, batch_size=1, length=length, finetune=False).inference
    memory, disk = need.peak_bytes + (tasks - 1) * need.task_bytes, tasks * entry.n_bytes
    depth, inputs = entry.shared_layers, example_inputs(bundle, task, 1, length)
    alone = predict_seconds(count_run(bundle.graph(task), inputs).works, profile)
    once = _lower(bundle, depth, length, profile)
    # Of a measured time the lower layers have the share that the prediction gives them.
    shared = once.seconds / alone.seconds if once and once.seconds and alone.seconds else 0.0
    if measured is None and alone.seconds is not None:
        measured = Seconds(alone.seconds, alone.interval or (alone.seconds, alone.seconds))
    if measured is None:
        return MethodCosts(None, None, memory, disk, depth)
    passes = 1 + (tasks - 1) * max(0.0, 1 - shared)
    low, high = measured.interval
    return MethodCosts(
        60 / (passes * measured.median), (60 / (passes * high), 60 / (passes * low)), memory, disk, depth
    )


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

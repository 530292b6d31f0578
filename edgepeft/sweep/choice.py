"""Which method of a sweep to take: the cheapest that fits and is not worse than the best beyond chance.

Costs are of N tasks on a device: time of a text, predicted or measured, peak memory, bytes.  Each method is exported
once, untrained, for what a graph costs does not depend on its values.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ge
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch

from edgepeft.backbones.base import Role
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.card import DeltaCard
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import DoesNotFit, UsageError
from edgepeft.data.training_loop.baselines import SIGNIFICANT
from edgepeft.deploy.cost import checked_length, example_inputs
from edgepeft.device.profiles import Profile
from edgepeft.device.roofline import predict_seconds
from edgepeft.graph.cost import count_run
from edgepeft.graph.cut import below
from edgepeft.methods.base import method_named
from edgepeft.sweep.folder import Sweep
from edgepeft.sweep.table import Arm, Column, columns, not_worse
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.fit import bundle_fit

_AS_FAST = 0.95  # of the fastest: predictions do not tell such times apart, and bytes decide
_TEMPLATE = ("source", "target", "targets", "step", "max_target_length")
_BASE = "import os; import edgepeft.runtime.runtime, psutil; print(psutil.Process().memory_info().rss)"


class Seconds(NamedTuple):
    """Of one text by one task, and the 95 % interval of the median."""

    median: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class MethodCosts:
    """Of N tasks on one backbone, each asked about every text."""

    per_minute: float | None  # texts that are answered by all of them; None where nothing was measured that could say
    interval: tuple[float, float] | None  # the same
    memory: int  # the peak in bytes of answering one text
    disk: int  # bytes of the tasks' files
    shared_layers: int  # that run once for all


@dataclass(frozen=True)
class Candidate:
    """A method with its runs, one arm a data set, and what its tasks cost."""

    method: str
    arms: tuple[Arm, ...]
    costs: MethodCosts

    @property
    def score(self) -> float:
        """The mean test score over the data sets."""
        return mean(arm.score for arm in self.arms)

    @property
    def objectives(self) -> tuple[float, ...]:
        """Score and costs, the more the better."""
        return self.score, self.costs.per_minute or 0.0, -float(self.costs.memory), -float(self.costs.disk)


@dataclass(frozen=True)
class Budget:
    """What must hold: texts a minute by all tasks, bytes of memory, bytes of the tasks' files; None: anything."""

    per_minute: float | None = None
    memory: int | None = None
    disk: int | None = None

    def misses(self, costs: MethodCosts) -> list[str]:
        """What a method is over."""
        bounds = ("throughput", self.per_minute, costs.per_minute or 0.0)  # the first may not be above the second
        others = (("memory", costs.memory, self.memory), ("disk", costs.disk, self.disk))
        return [what for what, x, most in (bounds, *others) if x is not None and most is not None and x > most]

    def nearest(self, known: Sequence[MethodCosts]) -> str:
        """What comes nearest to each bound."""
        said, rates = [], [costs.per_minute for costs in known if costs.per_minute is not None]
        memory, disk = (min(getattr(costs, name) for costs in known) / 1e6 for name in ("memory", "disk"))
        if self.per_minute is not None:
            most = (
                f"at most {max(rates):,.0f} texts a minute are answered" if rates else "no rate can be predicted there"
            )
            said.append(f"{most}, {self.per_minute:g} are asked for")
        if self.memory is not None:
            said.append(f"at least {memory:,.0f} MB of memory are taken, {self.memory / 1e6:,.0f} MB are allowed")
        if self.disk is not None:
            said.append(f"the tasks take at least {disk:,.2f} MB, {self.disk / 1e6:,.2f} MB are allowed")
        return "; ".join(said)


@dataclass(frozen=True)
class Selection:
    """``chosen`` of those that fit; ``front`` are the methods that none beats in score and every cost alike."""

    chosen: Candidate
    best: Candidate
    p: float | None
    front: tuple[str, ...]


def candidates(sweep: Sweep, data: str | None = None, backbone: str | None = None) -> dict[str, tuple[Arm, ...]]:
    """The methods that ran on every data set, or on the one that is named, at the largest size, on one backbone; an
    arm a data set."""
    found = [column for column in columns(sweep) if data in (None, column.place[1])]
    names = list(dict.fromkeys(column.place[0] for column in found))
    if backbone is None and len(names) > 1:
        raise UsageError(f"the sweep has {len(names)} backbones: {', '.join(names)}; give one of them: --backbone.")
    own = [column for column in found if backbone in (None, column.place[0])]
    if not own:
        known = sorted({cell.data for cell in sweep.cells})
        raise UsageError(f"no run of {sweep.folder} is done that this asks for; its data sets: {', '.join(known)}.")
    largest: dict[str, Column] = {}
    for column in own:
        before = largest.get(column.place[1])
        if before is None or column.best.rows > before.best.rows:
            largest[column.place[1]] = column
    everywhere = set.intersection(*(set(column.chosen) for column in largest.values()))
    names = [method for method in next(iter(largest.values())).chosen if method in everywhere]
    if not names:
        raise UsageError(f"no method ran on every data set ({', '.join(largest)}); name one: --data.")
    return {name: tuple(column.chosen[name] for column in largest.values()) for name in names}


def choose(found: Sequence[Candidate], budget: Budget) -> Selection:
    """The cheapest of those within the budget that are not worse than the best of them beyond chance.

    Cheapest is the most texts a minute; of methods within 5 % of it, for which a prediction is not sharp enough, the
    fewest bytes.
    """
    fitting = [each for each in found if not budget.misses(each.costs)]
    if not fitting:
        nearest = budget.nearest([each.costs for each in found])
        raise DoesNotFit(f"no method is within the budget: {nearest}.")
    best = max(fitting, key=lambda each: each.score)
    judged = [(each, 1.0 if each is best else not_worse(each.arms, best.arms)) for each in fitting]
    good = [(each, p) for each, p in judged if p is None or p >= SIGNIFICANT]
    fastest = max(each.costs.per_minute or 0.0 for each, _ in good)
    near = [(each, p) for each, p in good if (each.costs.per_minute or 0.0) >= _AS_FAST * fastest]
    chosen, p = min(near, key=lambda entry: (entry[0].costs.disk, -entry[0].score))
    # Of the front none is beaten: by another that is as good in score and every cost, and better in one.
    objectives = [each.objectives for each in found]
    beaten = {mine for mine in objectives for each in objectives if each != mine and all(map(ge, each, mine))}
    return Selection(chosen, best, p, tuple(each.method for each in found if each.objectives not in beaten))


def export_untrained(cards: Sequence[DeltaCard], backbone: str, work: Path, length: int | None = None) -> Bundle:
    """A bundle in the empty folder ``work`` with an untrained task t0, t1, ... for each card, of runs that are done.

    A ``length`` of texts that the tasks cannot read is refused before.
    """
    opened, folders = open_backbone(backbone), []
    if opened.sha256 != (trained := cards[0].backbone).sha256:
        raise UsageError(f"{backbone} is not {trained.source} that the sweep trained on: its weights are others.")
    for card in cards:
        checked_length(opened.architecture, card, 1, length)
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
                template={name: getattr(card, name) for name in _TEMPLATE},
                stride=card.chosen.get("stride"),
            )
        delta.save(folder := work / f"delta-{n}")
        folders.append(folder)
    # Fresh deltas decide nothing: how far rounded weights move them says nothing either.
    export_bundle(opened, folders, work / "bundle", accept_error=True)
    return Bundle(work / "bundle")


def costs_of(
    bundle: Bundle, profile: Profile, *, tasks: int, length: int | None, measured: Mapping[str, Seconds] | None = None
) -> dict[str, MethodCosts]:
    """The costs of ``tasks`` tasks like each of the bundle's that answer each text, by its name.

    ``length`` is a text's in tokens, 128 or as many as the tasks were trained on where it is None; ``measured`` is the
    time of a text by task, which is predicted where it is None.
    """
    base, found = _base(), dict[str, MethodCosts]()
    for task in bundle.manifest.tasks:
        entry = bundle.entry(task)
        tokens = checked_length(bundle.architecture, entry, 1, length, entry.max_length)
        need = bundle_fit(bundle, profile, task, base=base, batch_size=1, length=tokens, finetune=False).inference
        memory, disk = need.peak_bytes + (tasks - 1) * need.task_bytes, tasks * entry.n_bytes
        found[task] = MethodCosts(None, None, memory, disk, entry.shared_layers)
        predicted, shared = _predicted(bundle, task, profile, tokens)
        if (seconds := (measured or {}).get(task, predicted)) is not None:
            passes, (low, high) = 1 + (tasks - 1) * max(0.0, 1 - shared), seconds.interval
            interval = 60 / (passes * high), 60 / (passes * low)
            found[task] = replace(found[task], per_minute=60 / (passes * seconds.median), interval=interval)
    return found


def _base() -> int:
    """What a process that answers takes before it opens a bundle; this one has PyTorch too."""
    return int(subprocess.run([sys.executable, "-c", _BASE], capture_output=True, text=True, check=True).stdout)


def _predicted(bundle: Bundle, task: str, profile: Profile, length: int) -> tuple[Seconds | None, float]:
    """The time of a text, and the share of it in the layers that the backbone runs once for all tasks."""
    alone = predict_seconds(count_run(bundle.graph(task), example_inputs(bundle, 1, length)).works, profile)
    if alone.seconds is None:
        return None, 0.0
    once = None
    if depth := bundle.entry(task).shared_layers:
        last = bundle.architecture.sites_of(Role.LAYER_OUTPUT)[depth - 1].name
        part = below(bundle.spliced(None), bundle.manifest.backbone.sites[last])
        once = predict_seconds(count_run(part, example_inputs(bundle, 1, length)).works, profile).seconds
    interval = alone.interval or (alone.seconds, alone.seconds)
    return Seconds(alone.seconds, interval), once / alone.seconds if once else 0.0

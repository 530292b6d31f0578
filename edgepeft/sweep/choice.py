"""Which method of a sweep to take: the cheapest that fits and is not worse than the best beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from edgepeft.common.errors import DoesNotFit, UsageError
from edgepeft.data.training_loop.baselines import SIGNIFICANT
from edgepeft.sweep.costs import MethodCosts
from edgepeft.sweep.folder import Sweep
from edgepeft.sweep.table import Arm, Column, columns, not_worse

__all__ = ["Budget", "Candidate", "Choice", "candidates", "choose"]

_AS_FAST = 0.95  # of the fastest: predictions do not tell such times apart, and bytes decide


@dataclass(frozen=True)
class Candidate:
    """A method with its runs, one arm a data set, and what its tasks cost."""

    method: str
    arms: tuple[Arm, ...]
    costs: MethodCosts | None = None

    @property
    def score(self) -> float:
        """The mean test score over the data sets."""
        return mean(arm.score for arm in self.arms)


@dataclass(frozen=True)
class Budget:
    """What must hold: texts a minute by all tasks, bytes of memory, bytes of the tasks' files; None: anything."""

    per_minute: float | None = None
    memory: int | None = None
    disk: int | None = None

    def misses(self, costs: MethodCosts) -> list[str]:
        """What a method is over."""
        found = []
        if self.per_minute is not None and (costs.per_minute is None or costs.per_minute < self.per_minute):
            found.append("throughput")
        if self.memory is not None and costs.memory > self.memory:
            found.append("memory")
        if self.disk is not None and costs.disk > self.disk:
            found.append("disk")
        return found


@dataclass(frozen=True)
class Choice:
    """``chosen`` of those that fit; ``front`` are the methods that none beats in score and every cost alike."""

    chosen: Candidate
    best: Candidate
    p: float | None
    front: tuple[str, ...]


def candidates(sweep: Sweep, data: str | None = None, backbone: str | None = None) -> list[Candidate]:
    """The methods that ran on every data set, or on the one that is named, at the largest size, on one backbone.

    Raises:
        UsageError: no run is done there; several backbones and none is named.
    """
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
    return [Candidate(name, tuple(column.chosen[name] for column in largest.values())) for name in names]


def choose(found: Sequence[Candidate], budget: Budget) -> Choice:
    """The cheapest of those within the budget that are not worse than the best of them beyond chance.

    Cheapest is the most texts a minute; of methods within 5 % of it, for which a prediction is not sharp enough, the
    fewest bytes.

    Raises:
        DoesNotFit: none is within the budget; says by how much the nearest misses.
    """
    fitting = [(each, each.costs) for each in found if each.costs and not budget.misses(each.costs)]
    if not fitting:
        raise DoesNotFit(f"no method is within the budget: {_nearest(found, budget)}.")
    best = max((each for each, _ in fitting), key=lambda each: each.score)
    good = []
    for each, costs in fitting:
        p = 1.0 if each is best else not_worse(each.arms, best.arms)
        if p is None or p >= SIGNIFICANT:
            good.append((each, costs, p))
    fastest = max(costs.per_minute or 0.0 for _, costs, _ in good)
    near = [entry for entry in good if (entry[1].per_minute or 0.0) >= _AS_FAST * fastest]
    chosen, _, p = min(near, key=lambda entry: (entry[1].disk, -entry[0].score))
    return Choice(chosen, best, p, tuple(each.method for each in found if not _beaten(each, found)))


def _beaten(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether another is at least as good in score and every cost, and better in one."""
    mine = _merits(one)
    theirs = [_merits(each) for each in others if each is not one]
    return any(all(a >= b for a, b in zip(each, mine, strict=True)) and each != mine for each in theirs)


def _merits(one: Candidate) -> tuple[float, ...]:
    assert one.costs is not None
    return one.score, one.costs.per_minute or 0.0, -float(one.costs.memory), -float(one.costs.disk)


def _nearest(found: Sequence[Candidate], budget: Budget) -> str:
    known = [each.costs for each in found if each.costs]
    said = []
    if budget.per_minute is not None:
        rates = [costs.per_minute for costs in known if costs.per_minute is not None]
        most = f"at most {max(rates):,.0f} texts a minute are answered" if rates else "no rate can be predicted there"
        said.append(f"{most}, {budget.per_minute:g} are asked for")
    if budget.memory is not None:
        least = min(costs.memory for costs in known)
        said.append(f"at least {least / 1e6:,.0f} MB of memory are taken, {budget.memory / 1e6:,.0f} MB are allowed")
    if budget.disk is not None:
        least = min(costs.disk for costs in known)
        said.append(f"the tasks take at least {least / 1e6:,.2f} MB, {budget.disk / 1e6:,.2f} MB are allowed")
    return "; ".join(said)

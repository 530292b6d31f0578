"""Rounds: every unit once per round, in a shuffled order, never two at the same time.

Neighbours in time see the same host, so ratios are taken within a round; the order is shuffled so
that none always follows the same other (a hot cache, a hot core).  The clock is a parameter: tests
bring their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgepeft.errors import DoesNotFit
from edgepeft.profiles.sensors import Conditions

__all__ = ["Sample", "Series", "Steppable", "round_orders", "sample_rounds"]


@dataclass(frozen=True)
class Sample:
    """One step's wall and CPU seconds, measured inside the worker; the board's condition and energy beside it.

    Under a CPU quota the mean of many steps; ``each`` are those, or some of them.
    """

    seconds: float
    cpu_seconds: float
    each: tuple[float, ...] = ()
    conditions: Conditions | None = None
    joules: float | None = None


class Steppable(Protocol):
    """What can be asked to do one unit of work on batch number ``batch``."""

    def step(self, batch: int) -> Sample:
        """Do it and return what it cost."""


@dataclass
class Series:
    """All samples of one unit, in order; sample i worked on batch ``batches[i]``.

    ``failure``: it hit the memory limit and was left out of the rounds that followed.
    """

    warmup: list[Sample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    failure: DoesNotFit | None = None

    def add(self, unit: Steppable, batch: int, *, warmup: bool = False) -> None:
        """Step once, unless the unit has failed before."""
        if self.failure is not None:
            return
        try:
            sample = unit.step(batch)
        except DoesNotFit as error:
            self.failure = error
            return
        if warmup:
            self.warmup.append(sample)
        else:
            self.samples.append(sample)
            self.batches.append(batch)


def round_orders(names: Sequence[str], rounds: int, seed: int) -> Iterator[list[str]]:
    """One permutation of ``names`` per round, the same for the same seed."""
    source = random.Random(seed)
    for _ in range(rounds):
        order = list(names)
        source.shuffle(order)
        yield order


def sample_rounds(
    units: Mapping[str, Steppable],
    *,
    n_batches: int,
    warmup_batches: Sequence[int],
    rounds: int,
    max_seconds: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
    warmed: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Series]:
    """Warm up, then measure ``rounds`` rounds; round r works on batch r modulo ``n_batches``.

    A round that has begun is finished, so every unit has the same number of samples; no new one
    begins once ``max_seconds`` have passed since the first (one is always done).  ``warmed`` is called
    before the first.
    """
    series = {name: Series() for name in units}
    total = len(warmup_batches) + rounds
    for done, batch in enumerate(warmup_batches):
        progress(done, total)
        for name, unit in units.items():
            series[name].add(unit, batch, warmup=True)
    warmed()
    started = clock()
    for index, order in enumerate(round_orders(list(units), rounds, seed)):
        if index and clock() - started >= max_seconds:
            break
        progress(len(warmup_batches) + index, total)
        for name in order:
            series[name].add(units[name], index % n_batches)
    progress(total, total)
    return series

"""Rounds: every unit once per round, in a shuffled order, never two at the same time.

Neighbours in time see the same host, so ratios are taken within a round; the order is shuffled so
that no unit always follows the same other, and none follows itself: a step whose weights are still
in the cache takes two thirds of one that comes after another unit's.  The clock is a parameter, which
tests replace.

Measuring may end when every median is known well enough, warming up when steps no longer get faster.  The interval of a
median comes from order statistics (binomial; Conover 1999, section 3.2), which is cheap enough to ask after every
round; the reported interval is a bootstrap.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from edgepeft.common.errors import DoesNotFit, EdgepeftError
from edgepeft.device.sensors import Conditions, Meter, Sensors

_Z = 1.959964  # of a two-sided 95 % interval
_STEADY = 0.05  # between the last warm-up step and the best of those before
_LISTS = ("warmup", "samples", "batches")  # of a series


@dataclass(frozen=True)
class Budget:
    """The time left of ``--max-seconds``: until a moment of the clock, or without end."""

    until: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Budget:
        """So many seconds from now; None is no bound."""
        return cls(math.inf if seconds is None else clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds, 0 where it is over."""
        return max(0.0, self.until - self.clock())

    def part(self, of: int) -> Budget:
        """The first of so many equal parts of what is left."""
        return replace(self, until=self.clock() + self.left_s / of)

    def fits(self, seconds: float) -> bool:
        """Whether what takes so long ends in time; nothing does once it is over."""
        return seconds < self.left_s


NO_BOUND = Budget()


@dataclass(frozen=True)
class Sample:
    """One step's wall and CPU seconds, measured inside the worker; the board's condition and energy beside it."""

    seconds: float  # under a CPU quota the mean of many steps
    cpu_seconds: float
    each: tuple[float, ...] = ()  # those steps, or some of them
    repeats: int = 1  # how many they were
    conditions: Conditions | None = None
    joules: float | None = None


class Steppable(Protocol):
    """A worker, as far as the rounds use it."""

    def step(self, batch: int) -> Sample:
        """Do one unit of work on batch number ``batch``; return what it cost."""


@dataclass
class Series:
    """All samples of one unit, in order."""

    warmup: list[Sample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)  # sample i worked on batch ``batches[i]``
    failure: DoesNotFit | None = None  # it hit the memory limit and was left out of the rounds that followed
    left_out: bool = False  # no time was left for it
    interrupted: bool = False  # Ctrl-C was pressed; what is here was done before
    enough: bool = False  # it ended before all rounds because they were

    @property
    def seconds(self) -> list[float]:
        """Seconds of each sample."""
        return [sample.seconds for sample in self.samples]

    @property
    def alive(self) -> bool:
        """Whether it takes part in the rounds."""
        return self.failure is None and not self.left_out

    @property
    def last_s(self) -> float:
        """Seconds of its last step, warming up included; 0 before the first."""
        steps = [*self.warmup[-1:], *self.samples[-1:]]
        return steps[-1].seconds * steps[-1].repeats if steps else 0.0

    @classmethod
    def joined(cls, parts: Sequence[Series]) -> Series:
        """Put the samples of several launches behind each other; of what a result warns about, the worst counts."""
        warmup, samples, batches = ([x for one in parts for x in getattr(one, name)] for name in _LISTS)
        failure = next((one.failure for one in parts if one.failure), None)
        left_out, interrupted = all(one.left_out for one in parts), any(one.interrupted for one in parts)
        return cls(warmup, samples, batches, failure, left_out, interrupted, any(one.enough for one in parts))

    def add(self, unit: Steppable, batch: int, *, warmup: bool = False) -> None:
        """Step once, unless the unit has failed before, or had no time."""
        if not self.alive:
            return
        try:
            sample = unit.step(batch)
        except DoesNotFit as error:
            self.failure = error
            return
        if not 0.0 < sample.seconds < math.inf:  # NaN is not either
            raise EdgepeftError(
                f"a step took {sample.seconds} s: the clock went backwards or stands still, and nothing can be "
                "measured with it. Is it a virtual machine that was paused?"
            )
        if warmup:
            self.warmup.append(sample)
        else:
            self.samples.append(sample)
            self.batches.append(batch)


def round_orders(
    names: Sequence[str], rounds: int, seed: int, seldom: Collection[str] = (), every: int = 1
) -> Iterator[list[str]]:
    """Yield an order of ``names`` per round, ``seldom`` in one of ``every``; none begins with the last one's end."""
    source = random.Random(seed)
    last = None
    for index in range(rounds):
        order = [name for name in names if index % every == 0 or name not in seldom]
        source.shuffle(order)
        if len(order) > 1 and order[0] == last:
            order[0], order[-1] = order[-1], order[0]
        last = order[-1] if order else last
        yield order


def half_width(samples: Sequence[float]) -> float:
    """Half the median's 95 % interval as a share of the median; infinite for fewer than six samples."""
    n = len(samples)
    if n < 6:  # the extremes themselves hold the median with less than 95 %
        return math.inf
    ordered, width = sorted(samples), _Z * math.sqrt(n)
    low, high = math.floor((n - width) / 2), math.ceil((n + width) / 2)
    return (ordered[min(high, n - 1)] - ordered[max(low - 1, 0)]) / (2 * median(samples))


def precise(series: Mapping[str, Series], work: Mapping[int, float], precision: float) -> bool:
    """Whether all medians are known within ``precision``; ``work``: batch number -> relative size."""
    pairs = (zip(one.seconds, one.batches, strict=True) for one in series.values() if one.alive)
    return all(half_width([seconds / work.get(batch, 1.0) for seconds, batch in each]) <= precision for each in pairs)


def steady(series: Mapping[str, Series]) -> bool:
    """Whether every unit's last warm-up step was about as fast as its best before; two steps are needed."""
    warmups = [[sample.seconds for sample in one.warmup] for one in series.values() if one.alive]
    return all(
        len(seconds) > 1
        and seconds[-1] <= (1 + _STEADY) * min(seconds[:-1])
        and seconds[-1] >= (1 - _STEADY) * seconds[-2]
        for seconds in warmups
    )


@dataclass(frozen=True)
class Schedule:
    """How long to measure: batches to warm up on, rounds, seconds a workload, the order's seed."""

    n_batches: int
    warmup_batches: tuple[int, ...]
    rounds: int
    max_seconds: float
    seed: int
    min_rounds: int | None = None  # with ``precision``: no more than these where all medians are known that well
    precision: float | None = None
    more_warmup: int = 0  # rounds, until steps are steady
    probe_every: int = 1  # rounds, of the GEMM probes
    together: int = 1  # rounds that are begun in spite of ``max_seconds`` where the first of them was


def sample_rounds(
    units: Mapping[str, Steppable],
    schedule: Schedule,
    *,
    enough: Callable[[Mapping[str, Series]], bool] = lambda series: False,
    is_steady: Callable[[Mapping[str, Series]], bool] = steady,
    clock: Callable[[], float] = time.monotonic,
    warmed: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    seldom: Collection[str] = (),
    budget: Budget = NO_BOUND,
) -> dict[str, Series]:
    """Warm up, then measure whole rounds; round r works on batch r modulo ``n_batches``.  Ctrl-C ends them early.

    After ``min_rounds`` it ends as soon as the samples are ``enough``; up to ``more_warmup`` further rounds of warming
    up are done until steps are steady.  ``warmed`` is called before the first round, ``progress`` with the rounds done
    and those in all; units in ``seldom`` take part in one of ``schedule.probe_every`` rounds only.  Of the ``budget``,
    warming up leaves a round of measuring what is warm; what would not end in time is not begun.
    """
    warmup = schedule.warmup_batches
    series = {name: Series() for name in units}
    total = len(warmup) + schedule.rounds
    for done, batch in enumerate(warmup):
        progress(done, total)
        _warm_up(units, series, batch, budget)
    for _ in range(schedule.more_warmup):
        if is_steady(series) or not budget.fits(2 * _round_s(series)):
            break
        _warm_up(units, series, warmup[-1], budget)
    warmed()
    passed, before = 0.0, clock()
    try:
        orders = round_orders(list(units), schedule.rounds, schedule.seed, seldom, schedule.probe_every)
        for index, order in enumerate(orders):
            now = clock()
            passed, before = passed + max(0.0, now - before), now  # a clock that was set back adds nothing
            over = passed >= schedule.max_seconds and not index % schedule.together
            if index and (over or not budget.fits(_round_s(series))):
                break
            if index >= (schedule.min_rounds or 1) and enough(series):
                for one in series.values():
                    one.enough = True
                break
            progress(len(warmup) + index, total)
            for name in order:
                if not index and not budget.fits(series[name].last_s):
                    series[name].left_out = True
                series[name].add(units[name], index % schedule.n_batches)
    except KeyboardInterrupt:  # whole rounds only are kept, so that ratios stay within rounds
        rare = seldom if schedule.probe_every > 1 else ()
        always = [one for name, one in series.items() if name not in rare and one.alive]
        whole = min((len(one.samples) for one in always), default=0)
        for one in series.values():
            one.interrupted = True
            del one.samples[whole:], one.batches[whole:]
    progress(total, total)
    return series


def _warm_up(units: Mapping[str, Steppable], series: Mapping[str, Series], batch: int, budget: Budget) -> None:
    for name, unit in units.items():
        one = series[name]
        guess = 2 * max(each.last_s for each in series.values())  # of one that is new: a step now, one to measure
        if budget.fits((one.last_s or guess) + _round_s(series)):  # then there is a round for what is warm
            one.add(unit, batch, warmup=True)
        elif not one.warmup:
            one.left_out = True


def _round_s(series: Mapping[str, Series]) -> float:
    """Seconds of a round, by each unit's last step."""
    return sum(one.last_s for one in series.values() if one.alive)


class Watched:
    """A worker whose samples carry the board's condition at their end, and energy where ``meter`` is given."""

    def __init__(self, worker: Steppable, sensors: Sensors, meter: Meter | None = None):
        self._worker, self._sensors, self._meter = worker, sensors, meter

    def step(self, batch: int) -> Sample:
        """One step of the worker, and how the board was."""
        with self._meter or nullcontext():
            sample = self._worker.step(batch)
        conditions = self._sensors.read()
        return replace(
            sample,
            conditions=conditions if conditions.known else None,
            joules=self._meter.joules if self._meter is not None else None,
        )


def throttled_samples(series: Series) -> list[tuple[str, ...]]:
    """The reasons, of each sample during which the board throttled."""
    readings = (sample.conditions.throttled for sample in series.samples if sample.conditions is not None)
    return [reasons for reasons in readings if reasons]

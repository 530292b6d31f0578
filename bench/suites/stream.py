"""A stream of texts with a deadline: the highest rate of arrival at which 95 of 100 are answered in time.

Texts arrive at random (a Poisson process), in a data set's order.  An engine that is free takes what waits as a batch,
up to so many rows; each has the better of one row and sixteen.  Arrivals are of a simulated clock, which moves on by
the measured time of each batch: no engine waits, and the rates of all are found in turn.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import product

import numpy as np

from bench.suites._engines import ENGINES, FOR_ONE_TEXT, racers_of
from bench.suites._result import SuiteRow, Target, ratio_row
from bench.suites._suite_run import SETS, SuiteRun
from edgepeft.bench.measuring.measure import WorkerProcess
from edgepeft.bench.planning.scenario import load_lengths

TITLE = "A stream with a deadline"
ARCHITECTURE = "all-MiniLM-L6-v2"
CASES = SETS

_DEADLINE_S, _SLOWER_S = 0.1, 0.5  # the second for a backbone of more parameters than a small one has
_SMALL = 50_000_000
_SPAN = 15  # deadlines of arrivals
_ARRIVALS = 4000  # in that time at most
_TEXTS = 100  # then from the first again
_MAX_ROWS = (1, 16)  # of a batch
_FINER, _COARSE = 1.04, 8  # a rate over the next one; steps of the first search
_MIN_RATE = 0.1  # texts a deadline; whoever is late then is late without a queue
# torch.compile writes code for each shape.
_PEERS = tuple(name for name in ENGINES if name not in ("torch.compile", *FOR_ONE_TEXT))
Step = Callable[[int, int], float]  # runs a batch of so many rows, from that text on; its seconds


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """The rate beside each peer's, the sets of lengths in turn."""
    sets, widest = tuple(run.cases or SETS), max(_MAX_ROWS)
    batches = tuple(batch for data in sets for batch in _batches(run, data, widest))
    racers, missing = racers_of(run, _PEERS, batches)
    for name, reason in missing.items():
        yield SuiteRow("a stream", name, note=reason)
    order, source, until = list(racers), random.Random(run.seed), time.monotonic() + run.max_seconds
    deadline_s = _DEADLINE_S if run.sizes.n_parameters <= _SMALL else _SLOWER_S
    gaps: dict[str, list[float]] = {label: [] for label in racers}  # between texts, in s, at each one's highest rate
    with ExitStack() as stack:
        workers = {
            label: stack.enter_context(run.worker(label, racer.job, racer.python)) for label, racer in racers.items()
        }
        for number, place in product(range(run.rounds), range(len(sets))):
            if number and time.monotonic() > until:
                break
            arrivals = np.random.default_rng(run.seed + number).exponential(size=_ARRIVALS).cumsum().tolist()
            source.shuffle(order)
            for done, label in enumerate(order):
                run.progress(f"a stream of {sets[place]}, round {number + 1}", done, len(order))

                @cache  # one by one, batches are the same at every rate
                def step(first: int, rows: int, worker: WorkerProcess = workers[label], place: int = place) -> float:
                    return worker.step((place * _TEXTS + first % _TEXTS) * widest + rows - 1, rest=False).seconds

                gaps[label].append(min(least_gap(step, arrivals, most, deadline_s) for most in _MAX_ROWS))
                workers[label].rest()
    for name in (name for name in _PEERS if name not in missing):
        own = ENGINES[name].own_side
        what = f"{own}, a stream with {1e3 * deadline_s:.0f} ms for an answer"
        if late := [side for side in (own, name) if math.inf in gaps[side]]:
            yield SuiteRow(what, name, note=f"too late at any rate: {', '.join(late)}")
        else:
            yield ratio_row(
                what, gaps, own, name, Target(1.0), note="" if sets == SETS else f"lengths of {', '.join(sets)}"
            )


def _batches(run: SuiteRun, data: str, widest: int) -> Iterator[tuple[int, ...]]:
    """Of one row to ``widest``, from each text on."""
    lengths = load_lengths(data, seed=run.seed).clamped(run.sizes.max_length).values
    texts = np.resize(lengths, _TEXTS + widest).tolist()
    for first, rows in product(range(_TEXTS), range(1, widest + 1)):
        yield tuple(texts[first : first + rows])


def least_gap(step: Step, arrivals: Sequence[float], most: int, deadline_s: float = _DEADLINE_S) -> float:
    """Seconds between arrivals, the least with which ``most`` rows a batch are in time; infinite where none is.

    ``arrivals``: of each text, in mean gaps; more frequent ones than these are not tried.  Found by halving on a grid.
    """
    start = sum(step(text, 1) for text in range(0, _TEXTS, 20)) / (_TEXTS / 20)
    known, tried = None, 0  # steps up from the time of one text alone
    while not in_time(step, arrivals, start * _FINER**tried, most, deadline_s):
        if start * _FINER**tried > deadline_s / _MIN_RATE:
            return math.inf
        known, tried = tried, tried + _COARSE
    while known is None:
        if start * _FINER ** (tried - _COARSE) * len(arrivals) < _SPAN * deadline_s:
            return start * _FINER**tried
        if in_time(step, arrivals, start * _FINER ** (tried - _COARSE), most, deadline_s):
            tried -= _COARSE
        else:
            known = tried - _COARSE
    while tried - known > 1:
        middle = (known + tried) // 2
        if in_time(step, arrivals, start * _FINER**middle, most, deadline_s):
            tried = middle
        else:
            known = middle
    return start * _FINER**tried


def in_time(step: Step, arrivals: Sequence[float], gap: float, most: int, deadline_s: float) -> bool:
    """Whether 95 of 100 texts are answered in time where they arrive ``gap`` seconds apart in the mean."""
    clock, first, late, whole = 0.0, 0, 0, bisect(arrivals, _SPAN * deadline_s / gap)
    while first < whole and late <= whole // 20:
        clock = max(clock, gap * arrivals[first])
        waiting = sum(gap * each <= clock for each in arrivals[first : min(first + most, whole)])
        clock += step(first, waiting)
        late += sum(clock - gap * each > deadline_s for each in arrivals[first : first + waiting])
        first += waiting
    return late <= whole // 20

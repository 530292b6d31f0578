"""The closed set of warnings of a result: each kind with what to do about it, and the functions that find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.sampler import throttled_samples
from edgepeft.bench.result.statistics import drift, outliers, percentile

__all__ = ["CHECKS", "Check", "comparable", "warnings_of"]

_MIN_SAMPLES = 5  # under it a bootstrap interval is a guess
_NOISY = 0.15  # spread between the quartiles, of the median
_DRIFT = 0.10  # from the first sample to the last
_LEAST_FOR_DRIFT = 15
_OUTLIERS = 0.10  # share of samples: fewer are any host's
_CLOCK = 0.10  # spread between the quartiles of the GEMM rate, of its median
_LOAD = 0.25  # cores; an idle desktop uses less
_STOLEN = 0.02  # cores


Find = Callable[[Measured, int], str | None]  # of how many rounds were asked: what a warning is about, if it applies


class Check(NamedTuple):
    """A kind of warning, which opens its text; what to do about it, unless the text says it; and what finds it."""

    kind: str
    hint: str
    find: Find


CHECKS: list[Check] = []  # in the order in which they are reported


def _warns(kind: str, hint: str = "") -> Callable[[Find], Find]:
    def register(find: Find) -> Find:
        CHECKS.append(Check(kind, hint, find))
        return find

    return register


@_warns("not available")
def _unavailable(one: Measured, rounds: int) -> str | None:
    return one.unit.unavailable


@_warns("does not fit")
def _too_large(one: Measured, rounds: int) -> str | None:
    return str(one.failure) if one.failure and not one.unit.unavailable else None


@_warns("left out", "raise --max-seconds, or ask for less: --engine, --workload, --task")
def _no_time(one: Measured, rounds: int) -> str | None:
    return "no time was left to measure it" if one.left_out else None


@_warns("interrupted", "run the same command with --resume, or anew where it has --against")
def _interrupted(one: Measured, rounds: int) -> str | None:
    return f"{len(one.series.samples)} rounds were done before" if one.interrupted else None


@_warns("cut short", "raise --max-seconds")
def _few_rounds(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    cut_short = 0 < done < rounds and not (one.series.enough or one.interrupted)
    return f"{done} of {rounds} rounds were done before the time was up" if cut_short else None


@_warns("too few samples", "raise --rounds")
def _few_samples(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    return f"{done} samples: intervals need at least {_MIN_SAMPLES}" if 0 < done < _MIN_SAMPLES else None


@_warns("no percentile", "raise --rounds; a percentile needs a sample above it")
def _no_percentile(one: Measured, rounds: int) -> str | None:
    seconds = one.series.seconds
    if any(sample.each for sample in one.series.samples):
        return None  # under a quota: there are more steps than samples, or no percentiles at all
    lacking = [f"p{p}" for p in (50, 90, 99) if seconds and percentile(seconds, p) is None]
    return f"{len(seconds)} samples do not support {', '.join(lacking)}" if lacking else None


@_warns("noisy", "close what else runs, or judge by ratios within rounds (--against)")
def _noise(one: Measured, rounds: int) -> str | None:
    spread = _spread(comparable(one))
    return f"half of the samples spread over {spread:.0%} of the median" if spread > _NOISY else None


@_warns("outliers", "they are kept in samples_s; the median does not feel them")
def _outliers(one: Measured, rounds: int) -> str | None:
    seconds = comparable(one)
    places = outliers(seconds)
    many = len(places) > _OUTLIERS * len(seconds)
    return f"{len(places)} of {len(seconds)} samples lie far from the median" if many else None


@_warns("drift", "let the machine reach its temperature first, then measure again")
def _drift(one: Measured, rounds: int) -> str | None:
    seconds = comparable(one)
    change = drift(seconds) if len(seconds) >= _LEAST_FOR_DRIFT else None
    if change is None or abs(change) <= _DRIFT:
        return None
    return f"a step took {change:+.0%} at the end against the beginning"


@_warns("throttled", "cool the processor or raise the quota; throughput is lower than it could be")
def _throttled(one: Measured, rounds: int) -> str | None:
    """In some samples, by the board's sensors; else somewhere in the run, by the processor's counters."""
    if throttled := throttled_samples(one.series):
        reasons = ", ".join(dict.fromkeys(reason for sample in throttled for reason in sample))
        return f"the board held itself back in {len(throttled)} of {len(one.series.samples)} samples ({reasons})"
    heat_events = one.load.heat_events if one.load else 0
    return f"the processor held back for heat {heat_events} times" if heat_events else None


@_warns("unsteady clock", "set the performance governor or turn turbo off; ratios within rounds hold all the same")
def _clock(one: Measured, rounds: int) -> str | None:
    spread = _spread(one.gemm.seconds)
    return f"half of the host's GEMM rates spread over {spread:.0%} of their median" if spread > _CLOCK else None


@_warns("other load", "close what else runs; on a shared machine compare with --against only")
def _load(one: Measured, rounds: int) -> str | None:
    load = one.load
    if load is None or (load.other_cores <= _LOAD and load.stolen_cores <= _STOLEN):
        return None
    stolen = f", a hypervisor's other guests {load.stolen_cores:.2f}" if load.stolen_cores > _STOLEN else ""
    return f"others used {load.other_cores:.2f} cores meanwhile{stolen}"


@_warns("spinning oversubscribed", "threads wait for each other in a loop: give as many as there are cores")
def _oversubscribed(one: Measured, rounds: int) -> str | None:
    job, kept = one.unit.job, one.in_force
    if job is None or kept is None or not one.series.samples or any(sample.each for sample in one.series.samples):
        return None  # under a calibration's quota threads do not spin
    cores = min(kept.cores, kept.cpu_quota) if kept.cpu_quota else kept.cores
    return f"{job.threads} threads on {cores:g} cores" if job.threads > cores else None


@_warns("swap", "free some memory, or take a smaller --batch-size")
def _swap(one: Measured, rounds: int) -> str | None:
    swapped = one.load.swapped_bytes if one.load else 0
    return f"{swapped / 1e6:,.0f} MB were swapped meanwhile" if swapped else None


def warnings_of(one: Measured, rounds: int) -> list[str]:
    """Every warning that applies to a unit of which ``rounds`` rounds were asked: ``kind: what (hint)``."""
    found = ((check, check.find(one, rounds)) for check in CHECKS)
    texts = [f"{check.kind}: {text}" + (f" ({check.hint})" if check.hint else "") for check, text in found if text]
    return [*texts, *one.notes]


def _spread(seconds: Sequence[float]) -> float:
    """Between the quartiles, of the median; 0 where there are too few."""
    if len(seconds) < _MIN_SAMPLES:
        return 0.0
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    return float((high - low) / middle)


def comparable(one: Measured) -> Sequence[float]:
    """Samples that should be equal: none where batches differ in length."""
    job = one.unit.job
    shapes = {(len(batch), max(batch)) for batch in job.batches} if job else set()
    return one.series.seconds if len(shapes) == 1 else []

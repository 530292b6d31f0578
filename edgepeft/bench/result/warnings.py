"""The closed set of warnings of a result: each kind with what to do about it, and the functions that find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.watch import throttled_samples
from edgepeft.bench.result.statistics import drift, outliers, percentile

__all__ = ["CHECKS", "HINTS", "WarningKind", "comparable", "warnings_of"]

_MIN_SAMPLES = 5  # under it a bootstrap interval is a guess
_NOISY = 0.15  # spread between the quartiles, of the median
_DRIFT = 0.10  # from the first sample to the last
_LEAST_FOR_DRIFT = 15
_OUTLIERS = 0.10  # share of samples: fewer are any host's
_CLOCK = 0.10  # spread between the quartiles of the GEMM rate, of its median
_LOAD = 0.25  # cores; an idle desktop uses less
_STOLEN = 0.02  # cores


class WarningKind(StrEnum):
    """A kind; its text opens the warning, and a colon follows."""

    UNAVAILABLE = "not available"
    TOO_LARGE = "does not fit"
    CUT_SHORT = "cut short"
    FEW_SAMPLES = "too few samples"
    NO_PERCENTILE = "no percentile"
    NOISY = "noisy"
    OUTLIERS = "outliers"
    DRIFT = "drift"
    CLOCK = "unsteady clock"
    LOAD = "other load"
    THROTTLED = "throttled"
    OVERSUBSCRIBED = "spinning oversubscribed"
    SWAP = "swap"
    INTERRUPTED = "interrupted"


HINTS = {
    WarningKind.UNAVAILABLE: "",  # its text names what to install
    WarningKind.TOO_LARGE: "",  # its text names what to make smaller
    WarningKind.CUT_SHORT: "raise --max-seconds",
    WarningKind.FEW_SAMPLES: "raise --rounds",
    WarningKind.NO_PERCENTILE: "raise --rounds; a percentile needs a sample above it",
    WarningKind.NOISY: "close what else runs, or judge by ratios within rounds (--against)",
    WarningKind.OUTLIERS: "they are kept in samples_s; the median does not feel them",
    WarningKind.DRIFT: "let the machine reach its temperature first, then measure again",
    WarningKind.CLOCK: "set the performance governor or turn turbo off; ratios within rounds hold all the same",
    WarningKind.LOAD: "close what else runs; on a shared machine compare with --against only",
    WarningKind.THROTTLED: "cool the processor or raise the quota; throughput is lower than it could be",
    WarningKind.OVERSUBSCRIBED: "threads wait for each other in a loop: give as many as there are cores",
    WarningKind.SWAP: "free some memory, or take a smaller --batch-size",
    WarningKind.INTERRUPTED: "run the same command with --resume, or anew where it has --against",
}


def _warning(kind: WarningKind, what: str) -> str:
    """``kind: what (hint)``."""
    hint = f" ({HINTS[kind]})" if HINTS[kind] else ""
    return f"{kind}: {what}{hint}"


def _not_measured(one: Measured, rounds: int) -> str | None:
    if one.unit.unavailable:
        return _warning(WarningKind.UNAVAILABLE, one.unit.unavailable)
    return _warning(WarningKind.TOO_LARGE, str(one.failure)) if one.failure else None


def _few_rounds(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    if 0 < done < rounds and not (one.series.enough or one.interrupted):
        return _warning(WarningKind.CUT_SHORT, f"{done} of {rounds} rounds were done before the time was up")
    return None


def _few_samples(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    if 0 < done < _MIN_SAMPLES:
        return _warning(WarningKind.FEW_SAMPLES, f"{done} samples: intervals need at least {_MIN_SAMPLES}")
    return None


def _no_percentile(one: Measured, rounds: int) -> str | None:
    seconds = _seconds(one)
    if any(sample.each for sample in one.series.samples):
        return None  # under a quota: there are more steps than samples, or no percentiles at all
    lacking = [f"p{p}" for p in (50, 90, 99) if seconds and percentile(seconds, p) is None]
    return (
        _warning(WarningKind.NO_PERCENTILE, f"{len(seconds)} samples do not support {', '.join(lacking)}")
        if lacking
        else None
    )


def _noise(one: Measured, rounds: int) -> str | None:
    spread = _spread(comparable(one))
    return (
        _warning(WarningKind.NOISY, f"half of the samples spread over {spread:.0%} of the median")
        if spread > _NOISY
        else None
    )


def _outliers(one: Measured, rounds: int) -> str | None:
    seconds = comparable(one)
    places = outliers(seconds)
    if len(places) <= _OUTLIERS * len(seconds):
        return None
    return _warning(WarningKind.OUTLIERS, f"{len(places)} of {len(seconds)} samples lie far from the median")


def _drift(one: Measured, rounds: int) -> str | None:
    seconds = comparable(one)
    change = drift(seconds) if len(seconds) >= _LEAST_FOR_DRIFT else None
    if change is None or abs(change) <= _DRIFT:
        return None
    return _warning(WarningKind.DRIFT, f"a step took {change:+.0%} at the end against the beginning")


def _clock(one: Measured, rounds: int) -> str | None:
    spread = _spread([sample.seconds for sample in one.gemm.samples])
    if spread <= _CLOCK:
        return None
    return _warning(WarningKind.CLOCK, f"half of the host's GEMM rates spread over {spread:.0%} of their median")


def _load(one: Measured, rounds: int) -> str | None:
    load = one.load
    if load is None or (load.other_cores <= _LOAD and load.stolen_cores <= _STOLEN):
        return None
    stolen = f", a hypervisor's other guests {load.stolen_cores:.2f}" if load.stolen_cores > _STOLEN else ""
    return _warning(WarningKind.LOAD, f"others used {load.other_cores:.2f} cores meanwhile{stolen}")


def _throttled(one: Measured, rounds: int) -> str | None:
    """In some samples, by the board's sensors; else somewhere in the run, by the processor's counters."""
    if throttled := throttled_samples(one.series):
        reasons = ", ".join(dict.fromkeys(reason for sample in throttled for reason in sample))
        what = f"the board held itself back in {len(throttled)} of {len(one.series.samples)} samples ({reasons})"
        return _warning(WarningKind.THROTTLED, what)
    if one.load is None or not one.load.heat_events:
        return None
    return _warning(WarningKind.THROTTLED, f"the processor held back for heat {one.load.heat_events} times")


def _oversubscribed(one: Measured, rounds: int) -> str | None:
    job, kept = one.unit.job, one.in_force
    if job is None or kept is None or not one.series.samples or any(sample.each for sample in one.series.samples):
        return None  # under a calibration's quota threads do not spin
    cores = min(kept.cores, kept.cpu_quota) if kept.cpu_quota else kept.cores
    return (
        _warning(WarningKind.OVERSUBSCRIBED, f"{job.threads} threads on {cores:g} cores")
        if job.threads > cores
        else None
    )


def _swap(one: Measured, rounds: int) -> str | None:
    if one.load is None or not one.load.swapped_bytes:
        return None
    return _warning(WarningKind.SWAP, f"{one.load.swapped_bytes / 1e6:,.0f} MB were swapped meanwhile")


def _interrupted(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    return _warning(WarningKind.INTERRUPTED, f"{done} rounds were done before") if one.interrupted else None


CHECKS: tuple[Callable[[Measured, int], str | None], ...] = (
    _not_measured,
    _interrupted,
    _few_rounds,
    _few_samples,
    _no_percentile,
    _noise,
    _outliers,
    _drift,
    _throttled,
    _clock,
    _load,
    _oversubscribed,
    _swap,
)


def warnings_of(one: Measured, rounds: int) -> list[str]:
    """Every warning that applies to a unit of which ``rounds`` rounds were asked."""
    return [warning for check in CHECKS if (warning := check(one, rounds))] + list(one.notes)


def _seconds(one: Measured) -> list[float]:
    return [sample.seconds for sample in one.series.samples]


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
    return _seconds(one) if len(shapes) == 1 else []

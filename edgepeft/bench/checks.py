"""The closed set of things that a result may warn about; each is one function of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgepeft.bench.measure import Measured
from edgepeft.bench.statistics import percentile
from edgepeft.bench.watch import throttled_samples

__all__ = ["CHECKS", "warnings_of"]

_MIN_SAMPLES = 5  # under it a bootstrap interval is a guess
_NOISY = 0.15  # spread between the quartiles, of the median
_DRIFT = 0.10  # between the first and the last third of the rounds


def _not_measured(one: Measured, rounds: int) -> str | None:
    if one.unit.unavailable:
        return f"not available: {one.unit.unavailable}"
    return f"does not fit: {one.failure}" if one.failure else None


def _few_rounds(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    if 0 < done < rounds:
        return f"{done} of {rounds} rounds were done before the time was up"
    return None


def _few_samples(one: Measured, rounds: int) -> str | None:
    done = len(one.series.samples)
    if 0 < done < _MIN_SAMPLES:
        return f"{done} samples: intervals need at least {_MIN_SAMPLES}"
    return None


def _no_percentile(one: Measured, rounds: int) -> str | None:
    seconds = _seconds(one)
    if any(sample.each for sample in one.series.samples):
        return None  # under a quota: there are more steps than samples, or no percentiles at all
    lacking = [f"p{p}" for p in (50, 90, 99) if seconds and percentile(seconds, p) is None]
    return f"{len(seconds)} samples do not support {', '.join(lacking)}" if lacking else None


def _noise(one: Measured, rounds: int) -> str | None:
    seconds = _comparable(one)
    if len(seconds) < _MIN_SAMPLES:
        return None
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    spread = (high - low) / middle
    return f"noisy: half of the samples spread over {spread:.0%} of the median" if spread > _NOISY else None


def _drift(one: Measured, rounds: int) -> str | None:
    seconds = _comparable(one)
    third = len(seconds) // 3
    if third < _MIN_SAMPLES:
        return None
    change = float(np.median(seconds[-third:]) / np.median(seconds[:third])) - 1.0
    return f"drift: the last third took {change:+.0%} against the first" if abs(change) > _DRIFT else None


def _throttled(one: Measured, rounds: int) -> str | None:
    found = throttled_samples(one.series)
    if not found:
        return None
    reasons = ", ".join(dict.fromkeys(reason for sample in found for reason in sample))
    return f"throttled: the board held itself back in {len(found)} of {len(one.series.samples)} samples ({reasons})"


CHECKS: tuple[Callable[[Measured, int], str | None], ...] = (
    _not_measured,
    _few_rounds,
    _few_samples,
    _no_percentile,
    _noise,
    _drift,
    _throttled,
)


def warnings_of(one: Measured, rounds: int) -> list[str]:
    """Every warning that applies to a unit of which ``rounds`` rounds were asked."""
    return [warning for check in CHECKS if (warning := check(one, rounds))] + list(one.notes)


def _seconds(one: Measured) -> list[float]:
    return [sample.seconds for sample in one.series.samples]


def _comparable(one: Measured) -> Sequence[float]:
    """Samples that should be equal: none where batches differ in length."""
    job = one.unit.job
    shapes = {max(batch) for batch in job.batches} if job else set()
    return _seconds(one) if len(shapes) == 1 else []

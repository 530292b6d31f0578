"""When measuring may end (every median is known well enough), and when warming up may (steps no longer get faster).

The interval of a median comes from order statistics (binomial; Conover 1999, section 3.2), which is cheap enough to
ask after every round; the reported interval is a bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, sqrt

from edgepeft.bench.measuring.sampler import Series

__all__ = ["half_width", "precise", "steady"]

_Z = 1.959964  # of a two-sided 95 % interval
_STEADY = 0.05  # between the last warm-up step and the best of those before


def half_width(samples: Sequence[float]) -> float:
    """Half the median's 95 % interval as a share of the median; infinite for fewer than six samples."""
    n = len(samples)
    if n < 6:  # the extremes themselves hold the median with less than 95 %
        return float("inf")
    ordered = sorted(samples)
    low = floor((n - _Z * sqrt(n)) / 2)
    high = ceil((n + _Z * sqrt(n)) / 2)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return (ordered[min(high, n - 1)] - ordered[max(low - 1, 0)]) / (2 * middle)


def precise(series: Mapping[str, Series], work: Mapping[int, float], precision: float) -> bool:
    """Whether all medians are known within ``precision``; ``work``: batch number -> relative size."""
    alive = [one for one in series.values() if one.failure is None]
    pairs = (zip(one.seconds, one.batches, strict=True) for one in alive)
    return all(half_width([seconds / work.get(batch, 1.0) for seconds, batch in each]) <= precision for each in pairs)


def steady(series: Mapping[str, Series]) -> bool:
    """Whether every unit's last warm-up step was about as fast as its best before; two steps are needed."""
    alive = [one for one in series.values() if one.failure is None]
    return all(_is_steady([sample.seconds for sample in one.warmup]) for one in alive)


def _is_steady(seconds: Sequence[float]) -> bool:
    return (
        len(seconds) > 1
        and seconds[-1] <= (1 + _STEADY) * min(seconds[:-1])
        and seconds[-1] >= (1 - _STEADY) * seconds[-2]
    )

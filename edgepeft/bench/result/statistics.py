"""Figures derived from raw samples: throughput, percentiles, outliers, drift, and ratios with their uncertainty.

Intervals are percentile bootstraps (Efron and Tibshirani 1993, chapter 13) with a fixed seed, in
NumPy alone, so that a board can compute them.  All times are in seconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.result.schema import StatisticsRecord

CONFIDENCE = 0.95
_RESAMPLES = 4000  # the interval's ends then move by less than a tenth of its width between seeds
_SEED = 20_240_229  # any constant: the same samples must always give the same interval
_CUT = 3.5  # of the modified z score: Iglewicz and Hoaglin 1993, "How to detect and handle outliers"
_NORMAL = 0.6745  # the third quartile of a normal distribution: MAD / 0.6745 estimates its deviation
_MIN = 5

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """A ratio of throughputs, its interval at ``CONFIDENCE`` and the number of rounds behind it."""

    value: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def instances_per_minute(instances: Sequence[int], seconds: Sequence[float]) -> float:
    """All instances over all seconds: batches of unequal length count with their own weight."""
    return 60.0 * sum(instances) / sum(seconds)


def percentile(samples: Sequence[float], p: float) -> float | None:
    """Nearest-rank percentile (0 < p < 100); None of so few samples that it would only be their largest."""
    if not samples or len(samples) * (100.0 - p) < 100.0 - 1e-9:
        return None
    rank = int(np.ceil(len(samples) * p / 100.0 - 1e-9))
    return sorted(samples)[max(rank, 1) - 1]


def paired_ratio(own: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Throughput over the peer's: median of ``peer[i] / own[i]``, both of one round."""
    a, b, chosen = _paired(own, peer)
    ratios = b / a
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[chosen], axis=1)), len(ratios))


def ratio_of_totals(own: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Throughput over the peer's on the whole list: sum(peer) / sum(own), rounds resampled in pairs."""
    a, b, chosen = _paired(own, peer)
    ends = interval_of(b[chosen].sum(axis=1) / a[chosen].sum(axis=1))
    return Ratio(float(b.sum() / a.sum()), *ends, len(a))


def ratio_of_medians(
    base: Sequence[float],
    new: Sequence[float],
    base_speed: Sequence[float] = (1.0,),
    new_speed: Sequence[float] = (1.0,),
) -> Ratio:
    """New throughput over base throughput from two runs, each resampled on its own.

    ``base_speed`` and ``new_speed`` are the host's GEMM rates during each run: with them the ratio is
    of throughput per unit of host speed, and their noise widens the interval.
    """
    runs = [np.asarray(values, np.float64) for values in (base, base_speed, new, new_speed)]
    rng = np.random.default_rng(_SEED)

    def statistic(samples: Iterable[_Floats]) -> _Floats:
        base_s, base_v, new_s, new_v = (np.median(values, axis=-1) for values in samples)
        return np.asarray(base_s * base_v / (new_s * new_v))  # seconds x speed = work done

    ends = interval_of(statistic(values[rng.integers(0, len(values), (_RESAMPLES, len(values)))] for values in runs))
    return Ratio(float(statistic(runs)), *ends, min(len(base), len(new)))


def _paired(own: Sequence[float], peer: Sequence[float]) -> tuple[_Floats, _Floats, NDArray[np.int64]]:
    """Both sides, and places of resampled rounds [resamples, rounds]."""
    if len(own) != len(peer) or not own:
        raise ValueError(f"paired samples are needed, found {len(own)} and {len(peer)}")
    chosen = np.random.default_rng(_SEED).integers(0, len(own), (_RESAMPLES, len(own)))
    return np.asarray(own, np.float64), np.asarray(peer, np.float64), chosen


def interval_of(resampled: _Floats) -> tuple[float, float]:
    """The ends that ``CONFIDENCE`` of a statistic's resamples lie between."""
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(resampled, [tail, 100.0 - tail])
    return float(low), float(high)


def outliers(samples: Sequence[float]) -> list[int]:
    """Places of samples farther from the median than 3.5 deviations, these estimated from the MAD."""
    values = np.asarray(samples, np.float64)
    if len(values) < _MIN:
        return []
    away = np.abs(values - np.median(values))
    spread = np.median(away)
    if spread == 0.0:
        return [int(i) for i in np.flatnonzero(away > 0)] if np.count_nonzero(away) < len(values) / 2 else []
    return [int(i) for i in np.flatnonzero(_NORMAL * away / spread > _CUT)]


def drift(samples: Sequence[float]) -> float | None:
    """How far the time moved from the first sample to the last, as a share of the median: Theil and Sen's slope."""
    values = np.asarray(samples, np.float64)
    n = len(values)
    if n < _MIN:
        return None
    first, second = np.triu_indices(n, 1)
    slope = np.median((values[second] - values[first]) / (second - first))
    return float(slope * (n - 1) / np.median(values))


def summarised(samples: Sequence[float], *, alike: bool) -> StatisticsRecord:
    """The samples' median, outliers and drift; their number alone where batches differ in length (not ``alike``)."""
    if not samples or not alike:
        return StatisticsRecord(n=len(samples))
    ratio = ratio_of_medians(samples, (1.0,))  # the median itself, with its bootstrap interval
    return StatisticsRecord(
        n=len(samples),
        median_s=float(np.median(samples)),
        interval_s=(ratio.low, ratio.high),
        outliers=tuple(outliers(samples)),
        drift=drift(samples),
    )

"""What a row's samples say beyond their median: its interval, outliers, and whether it moved while it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepeft.bench.result.statistics import ratio_of_medians

__all__ = ["drift", "outliers", "summarised"]

_CUT = 3.5  # of the modified z score: Iglewicz and Hoaglin 1993, "How to detect and handle outliers"
_NORMAL = 0.6745  # the third quartile of a normal distribution: MAD / 0.6745 estimates its deviation
_LEAST = 5


def outliers(samples: Sequence[float]) -> list[int]:
    """Places of samples farther from the median than 3.5 deviations, these estimated from the MAD."""
    values = np.asarray(samples, np.float64)
    if len(values) < _LEAST:
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
    if n < _LEAST:
        return None
    first, second = np.triu_indices(n, 1)
    slope = np.median((values[second] - values[first]) / (second - first))
    return float(slope * (n - 1) / np.median(values))


def summarised(samples: Sequence[float], *, alike: bool) -> dict[str, Any]:
    """For JSON; ``alike``: samples should be equal, else (batches of unequal length) only their number is said."""
    if not samples or not alike:
        return {"n": len(samples), "median_s": None, "interval_s": None, "outliers": None, "drift": None}
    median = float(np.median(samples))
    ratio = ratio_of_medians(samples, (1.0,))  # the median itself, with its bootstrap interval
    return {
        "n": len(samples),
        "median_s": median,
        "interval_s": [ratio.low, ratio.high],
        "outliers": outliers(samples),
        "drift": drift(samples),
    }

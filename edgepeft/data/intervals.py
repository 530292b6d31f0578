"""95 % intervals of a score, by the n rows that it is of.

Of a share k / n of rows by Wilson (1927): (k + z^2 / 2 -+ z sqrt(k (n - k) / n + z^2 / 4)) / (n + z^2).  Of any other
score by the percentile bootstrap (Efron, 1979): the 2.5th and the 97.5th percentile of the scores of 1,000 draws of n
rows, with replacement and from a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DRAWS", "LEAST_ROWS", "Interval", "bootstrap", "bootstrap_of_sums", "wilson"]

DRAWS = 1_000
LEAST_ROWS = 10  # of a bootstrap: fewer have too few different draws
_Z = NormalDist().inv_cdf(0.975)
_ENDS = (2.5, 97.5)


class Interval(NamedTuple):
    """Both ends, and by which method: ``wilson`` or ``bootstrap``; None where there are too few rows."""

    low: float | None = None
    high: float | None = None
    method: str | None = None


def wilson(right: int, n: int) -> Interval:
    """Of the share ``right / n``."""
    middle, half = right + _Z**2 / 2, _Z * math.sqrt(right * (n - right) / n + _Z**2 / 4)
    low, high = ((middle + sign * half) / (n + _Z**2) for sign in (-1, 1))
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def bootstrap(score: Callable[[NDArray[np.intp]], float], n: int) -> Interval:
    """Of ``score``, a function of the places of rows."""
    if n < LEAST_ROWS:
        return Interval()
    source = np.random.default_rng(0)
    return _between([score(source.integers(n, size=n)) for _ in range(DRAWS)])


def bootstrap_of_sums(rows: NDArray[Any], of_sums: Callable[[NDArray[np.float64], int], float]) -> Interval:
    """The same of a score that the sums over the rows' values [n, ...] give."""
    n = len(rows)

    def score(places: NDArray[np.intp]) -> float:
        return of_sums(np.tensordot(np.bincount(places, minlength=n).astype(np.float64), rows, 1), n)

    return bootstrap(score, n)


def _between(scores: list[float]) -> Interval:
    low, high = np.percentile(scores, _ENDS)
    return Interval(float(low), float(high), "bootstrap")

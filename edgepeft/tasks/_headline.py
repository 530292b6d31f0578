"""What a result opens with: the figures that fit the task and its rows, each with its 95 % interval.

Of a share k / n of rows it is Wilson's (1927): (k + z^2 / 2 -+ z sqrt(k (n - k) / n + z^2 / 4)) / (n + z^2).  Of any
other score it is that of the percentile bootstrap (Efron, 1979): the 2.5th and the 97.5th percentile of the scores of
1,000 draws of n rows, with replacement and from a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.tasks.base import TaskType

DRAWS = 1_000
MIN_ROWS = 10  # of a bootstrap: fewer have too few different draws
_Z = NormalDist().inv_cdf(0.975)
_ENDS = (2.5, 97.5)


def headline_metrics(kind: TaskType, targets: Any, asked: str | None) -> list[str]:
    """Name the metric that was asked for, if any, and those that fit."""
    return list(dict.fromkeys([*([asked] if asked else []), *kind.fitting(targets)]))


def headline(kind: TaskType, targets: Any, outputs: Any, asked: str | None) -> list[dict[str, Any]]:
    """Return each ``metric``, how it is ``averaged``, its ``score``, ``low``, ``high`` and ``interval``'s method."""
    found = []
    for name in headline_metrics(kind, targets, asked):
        low, high, method = _interval(kind, name, targets, outputs)
        facts = {"metric": name, "averaged": kind.averaged(name), "score": kind.score(name, targets, outputs)}
        found.append({**facts, "low": low, "high": high, "interval": method})
    return found


def _interval(kind: TaskType, name: str, targets: Any, outputs: Any) -> Interval:
    metric, n = kind.metric_of(name), len(targets)
    if metric.of_sums is not None:
        rows = np.asarray(metric.function(kind, targets, outputs), np.float64)
        if rows.ndim == 1 and np.isin(rows, (0, 1)).all():
            return wilson(int(rows.sum()), n)
        return bootstrap_of_sums(rows, metric.of_sums)
    if not metric.resampled:
        return Interval()
    drawn = kind.resampled(outputs)
    return bootstrap(lambda places: kind.score(name, chosen(targets, places), chosen(drawn, places)), n)


def chosen(values: Any, places: Any) -> Any:
    """Take some of targets or outputs, which are lists if they are texts."""
    return [values[i] for i in places] if isinstance(values, list) else values[list(places)]


class Interval(NamedTuple):
    """Both ends, and by which method: ``wilson`` or ``bootstrap``; None where there are too few rows."""

    low: float | None = None
    high: float | None = None
    method: str | None = None


def wilson(right: int, n: int) -> Interval:
    """Return the interval of the share ``right / n``."""
    middle, half = right + _Z**2 / 2, _Z * math.sqrt(right * (n - right) / n + _Z**2 / 4)
    low, high = ((middle + sign * half) / (n + _Z**2) for sign in (-1, 1))
    return Interval(max(0.0, low), min(1.0, high), "wilson")


def bootstrap(score: Callable[[NDArray[np.intp]], float], n: int) -> Interval:
    """Return the interval of ``score``, a function of the places of rows."""
    if n < MIN_ROWS:
        return Interval()
    source = np.random.default_rng(0)
    low, high = np.percentile([score(source.integers(n, size=n)) for _ in range(DRAWS)], _ENDS)
    return Interval(float(low), float(high), "bootstrap")


def bootstrap_of_sums(rows: NDArray[Any], of_sums: Callable[[NDArray[np.float64], int], float]) -> Interval:
    """Return the interval of a score that the sums over the rows' values [n, ...] give."""
    n = len(rows)

    def score(places: NDArray[np.intp]) -> float:
        return of_sums(np.tensordot(np.bincount(places, minlength=n).astype(np.float64), rows, 1), n)

    return bootstrap(score, n)

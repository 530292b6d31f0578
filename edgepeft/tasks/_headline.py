"""What a result opens with: the figures that fit the task and its rows, each with its 95 % interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepeft.data.intervals import Interval, bootstrap, bootstrap_of_sums, wilson
from edgepeft.tasks.base import TaskType

__all__ = ["chosen", "headline", "headline_metrics"]


def headline_metrics(kind: TaskType, targets: Any, asked: str | None) -> list[str]:
    """The metric that was asked for, if one was, and those that fit."""
    return list(dict.fromkeys([*([asked] if asked else []), *kind.fitting(targets)]))


def headline(kind: TaskType, targets: Any, outputs: Any, asked: str | None) -> list[dict[str, Any]]:
    """Of each ``metric`` how it is ``averaged``, its ``score``, ``low`` and ``high``, and the ``interval``'s method."""
    found = []
    for name in headline_metrics(kind, targets, asked):
        low, high, method = _interval(kind, name, targets, outputs)
        facts = {"metric": name, "averaged": kind.averaged(name), "score": kind.score(name, targets, outputs)}
        found.append({**facts, "low": low, "high": high, "interval": method})
    return found


def _interval(kind: TaskType, name: str, targets: Any, outputs: Any) -> Interval:
    metric, n = kind.metric_of(name), len(targets)
    if metric.of_rows is not None:
        rows = np.asarray(metric.of_rows(kind, targets, outputs), np.float64)
        if rows.ndim == 1 and np.isin(rows, (0, 1)).all():
            return wilson(int(rows.sum()), n)
        return bootstrap_of_sums(rows, metric.of_sums)
    if not metric.resampled:
        return Interval()
    drawn = kind.resampled(outputs)
    return bootstrap(lambda places: kind.score(name, chosen(targets, places), chosen(drawn, places)), n)


def chosen(values: Any, places: Any) -> Any:
    """Those of targets or outputs, which are lists where they are texts."""
    return [values[i] for i in places] if isinstance(values, list) else values[list(places)]

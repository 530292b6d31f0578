"""Rates from latencies, by kind of graph, runtime and precision; and how far what they predict is off.

Every published latency is predicted without the rows that could give it away.  Left out is either the whole family of
the model, in every runtime, or (in class) the model alone.  What remains is fitted anew and goes the same way as any
prediction; the profile's own calibration rows, which have seen it all, are not used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.published import family_named, works_of
from edgepeft.common.operators import Work, graph_kind_of, product_flops
from edgepeft.device.profiles import Calibration, Profile
from edgepeft.device.roofline import Predicted, predict_seconds

_FOR_OVERHEAD = 10  # latencies that an overhead is fitted to; fewer give a rate through the origin
_FOR_ERROR = 3


@dataclass(frozen=True)
class Point:
    """A published latency with the operators of its model."""

    model: str
    graph: str
    runtime: str
    precision: str
    threads: int | None
    seconds: float
    works: tuple[Work, ...]

    @property
    def family(self) -> str:
        """The models that are left out together."""
        return family_named(self.graph)

    @property
    def flops(self) -> int:
        """Of its products."""
        return product_flops(self.works)


def points_of(profile: Profile) -> tuple[Point, ...]:
    """Every latency whose graph is known."""
    rows = [
        Point(row.model, row.graph, row.runtime, row.precision, row.threads, row.value / 1000, works_of(row.graph))
        for row in profile.latencies
        if row.graph
    ]
    for sweep in profile.sweeps:
        for *sizes, milliseconds in sweep.rows:
            graph = "-".join([sweep.graph, *(f"{size:g}" for size in sizes)])
            works = works_of(graph)
            rows.append(Point(graph, graph, sweep.runtime, sweep.precision, sweep.threads, milliseconds / 1000, works))
    return tuple(rows)


def fit_rates(points: Iterable[Point]) -> tuple[Calibration, ...]:
    """A row for each runtime, precision, number of threads and kind of graph."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        key = (point.runtime, point.precision, point.threads, graph_kind_of(point.works))
        groups.setdefault(key, []).append(point)
    return tuple(fit(group) for group in groups.values())


def fit(points: Sequence[Point]) -> Calibration:
    """seconds = FLOPs / rate + overhead, by least squares of the relative error; all of one kind and runtime.

    Fewer than ten give no overhead, and the geometric mean of their rates.  The error is that of each point from the
    others: a fit's error on its own points is too small.
    """
    rate, overhead = _line(points)
    first = points[0]
    return Calibration(
        runtime=first.runtime,
        precision=first.precision,
        operators=graph_kind_of(first.works),
        threads=first.threads,
        value=rate / 1e9,
        unit="GOP/s" if first.precision == "int8" else "GFLOP/s",
        overhead_ms=1000 * overhead,
        samples=len(points),
        error_percent=100 * _missed(points) if len(points) >= _FOR_ERROR else None,
        kind="derived",
        source="fitted to " + ", ".join(dict.fromkeys(point.model for point in points[:3])),
    )


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """FLOP/s and seconds."""
    flops = np.array([point.flops for point in points], np.float64)
    seconds = np.array([point.seconds for point in points])
    if len(points) >= _FOR_OVERHEAD:
        terms = np.stack([flops / seconds, 1 / seconds], 1)  # (n, 2); their sum should be 1 everywhere
        (slope, constant), *_ = np.linalg.lstsq(terms, np.ones(len(points)), rcond=None)
        if slope > 0 and constant >= 0:
            return float(1 / slope), float(constant)
    return math.exp(float(np.log(flops / seconds).mean())), 0.0


def _missed(points: Sequence[Point]) -> float:
    """The mean relative error of each point from the others."""
    errors = []
    for i, point in enumerate(points):
        rate, overhead = _line([*points[:i], *points[i + 1 :]])
        errors.append(abs((point.flops / rate + overhead) / point.seconds - 1))
    return sum(errors) / len(errors)


LeftOut = Literal["family", "model"]
_KEYS: dict[LeftOut, Callable[[Point], str]] = {
    "family": lambda point: point.family,
    "model": lambda point: point.graph,
}


@dataclass(frozen=True)
class Checked:
    """A measured latency beside what was predicted without its family, or without it."""

    device: str
    point: Point
    predicted: Predicted

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where nothing could be predicted."""
        return None if self.predicted.seconds is None else self.predicted.seconds / self.point.seconds - 1

    @property
    def within(self) -> bool | None:
        """Whether the measured latency lies in the predicted interval."""
        if self.predicted.interval is None:
            return None
        low, high = self.predicted.interval
        return low <= self.point.seconds <= high


def check_predictions(profiles: Iterable[Profile], left_out: LeftOut) -> list[Checked]:
    """Every latency whose graph is known, device by device."""
    key, checked = _KEYS[left_out], []
    for profile in profiles:
        points = points_of(profile)
        for hidden in dict.fromkeys(map(key, points)):
            kept = [point for point in points if key(point) != hidden]
            blind = profile.model_copy(update={"calibrations": fit_rates(kept)})
            for point in (point for point in points if key(point) == hidden):
                threads = None if point.threads in (None, profile.cores.value) else point.threads
                how = {"runtime": point.runtime, "precision": point.precision}
                checked.append(
                    Checked(profile.name, point, predict_seconds(point.works, blind, **how, threads=threads))
                )
    return checked


def mean_error(checked: Sequence[Checked]) -> float | None:
    """The mean size of the error; None where nothing could be predicted."""
    errors = [abs(one.error) for one in checked if one.error is not None]
    return statistics.fmean(errors) if errors else None


def summaries(checked: Iterable[Checked]) -> list[tuple[tuple[str, str, str], list[Checked]]]:
    """Grouped by device, family and runtime with its precision, in order."""
    groups: dict[tuple[str, str, str], list[Checked]] = {}
    for one in checked:
        runtime = f"{one.point.runtime} {one.point.precision}"
        if one.point.threads == 1:
            runtime += ", 1 thread"
        groups.setdefault((one.device, one.point.family, runtime), []).append(one)
    return list(groups.items())


def error_range(checked: Iterable[Checked]) -> tuple[float, float]:
    """The least and the largest error of those that could be predicted."""
    errors = [one.error for one in checked if one.error is not None]
    return (min(errors), max(errors)) if errors else (math.nan, math.nan)

"""How far predictions are off: every published latency, predicted without the rows that could give it away.

Left out is either the whole family of the model, in every runtime, or (in class) the model alone.  What remains is
fitted anew and goes the same way as any prediction; the profile's own calibration rows, which have seen it all, are not
used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.published.fitting import Point, fit_rates, points_of
from edgepeft.device.profiles import Profile
from edgepeft.device.roofline import Predicted, predict_seconds

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
    left_out: LeftOut
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
            for point in points:
                if key(point) == hidden:
                    checked.append(Checked(profile.name, point, left_out, _predict(blind, point)))
    return checked


def _predict(profile: Profile, point: Point) -> Predicted:
    threads = None if point.threads in (None, profile.cores.value) else point.threads
    return predict_seconds(point.works, profile, runtime=point.runtime, precision=point.precision, threads=threads)


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

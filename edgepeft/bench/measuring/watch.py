"""What a board is like while it is measured: each sample gets temperature, clock, throttling and energy."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from edgepeft.bench.measuring.sampler import Sample, Series, Steppable
from edgepeft.host.energy import Meter
from edgepeft.host.sensors import Sensors

__all__ = ["Watched", "throttled_samples"]


class Watched:
    """A worker whose samples carry the board's condition at their end, and energy where ``meter`` is given."""

    def __init__(self, worker: Steppable, sensors: Sensors, meter: Meter | None = None):
        self._worker, self._sensors, self._meter = worker, sensors, meter

    def step(self, batch: int) -> Sample:
        """One step of the worker, and how the board was."""
        with self._meter or nullcontext():
            sample = self._worker.step(batch)
        conditions = self._sensors.read()
        return replace(
            sample,
            conditions=conditions if conditions.known else None,
            joules=self._meter.joules if self._meter is not None else None,
        )


def throttled_samples(series: Series) -> list[tuple[str, ...]]:
    """The reasons, of each sample during which the board throttled."""
    readings = (sample.conditions.throttled for sample in series.samples if sample.conditions is not None)
    return [reasons for reasons in readings if reasons]

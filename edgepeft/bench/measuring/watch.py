"""What a board is like while it is measured: each sample gets temperature, clock, throttling and energy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from edgepeft.bench.measuring.sampler import Sample, Series, Steppable
from edgepeft.host.energy import Meter
from edgepeft.host.sensors import Sensors
from edgepeft.profiles.schema import Profile

__all__ = ["Watched", "board_conditions", "energy_of", "throttled_samples"]

_POWER = "power_load"


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


def board_conditions(series: Series) -> dict[str, Any] | None:
    """The board at the end of each sample, for JSON; None where it says nothing."""
    readings = [sample.conditions for sample in series.samples]
    if not any(readings):
        return None
    return {
        "temperature_c": [one and one.temperature_c for one in readings],
        "frequency_mhz": [one and one.frequency_mhz for one in readings],
        "throttled": [one and (None if one.throttled is None else list(one.throttled)) for one in readings],
    }


def throttled_samples(series: Series) -> list[tuple[str, ...]]:
    """Why, of each sample during which the board throttled."""
    found = (sample.conditions.throttled for sample in series.samples if sample.conditions is not None)
    return [reasons for reasons in found if reasons]


def energy_of(
    series: Series, rows: Sequence[int], profile: Profile | None, meter: Meter | None
) -> dict[str, Any] | None:
    """Joules an instance; ``rows`` are those of each sample's batch.

    From the board's sensor, else, where ``profile`` is given (times are the device's), from its power figure.
    """
    if not series.samples:
        return None
    joules = [sample.joules for sample in series.samples if sample.joules is not None]
    seconds = sum(sample.seconds for sample in series.samples)
    if meter is not None and meter.source and len(joules) == len(series.samples):
        total = sum(joules)
        return _energy(total / sum(rows), total / seconds, "sensor", meter.source)
    power = profile.figures.get(_POWER) if profile is not None else None
    if profile is None or power is None or power.unit != "W" or not isinstance(power.value, (int, float)):
        return None
    source = f"{_POWER} of profile {profile.name}: {power.value:g} W, {power.title} ({power.source or power.kind})"
    return _energy(power.value * seconds / sum(rows), float(power.value), "estimated", source)


def _energy(joules: float, watts: float, kind: str, source: str) -> dict[str, Any]:
    return {"joules_per_instance": joules, "watts": watts, "kind": kind, "source": source}

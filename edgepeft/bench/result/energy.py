"""The energy of an instance: from the board's sensor, else from the profile's power, where times are the device's."""

from __future__ import annotations

from collections.abc import Sequence

from edgepeft.bench.measuring.sampler import Series
from edgepeft.bench.result.schema import EnergyRecord
from edgepeft.host.energy import Meter
from edgepeft.profiles.schema import Profile

__all__ = ["energy_from_power", "energy_of"]

_POWER = "power_load"


def energy_of(series: Series, rows: Sequence[int], profile: Profile | None, meter: Meter | None) -> EnergyRecord | None:
    """Joules an instance; ``rows`` are those of each sample's batch, ``profile`` is None where times are the host's."""
    if not series.samples:
        return None
    joules = [sample.joules for sample in series.samples if sample.joules is not None]
    seconds = sum(series.seconds)
    if meter is not None and meter.source and len(joules) == len(series.samples):
        total = sum(joules)
        return EnergyRecord(
            joules_per_instance=total / sum(rows), watts=total / seconds, kind="sensor", source=meter.source
        )
    return energy_from_power(profile, seconds, sum(rows)) if profile is not None else None


def energy_from_power(profile: Profile, seconds: float, instances: int) -> EnergyRecord | None:
    """The profile's power for so long; None where it states none."""
    if (watts := profile.amount(_POWER, "W")) is None:
        return None
    power = profile.figures[_POWER]
    source = f"{_POWER} of profile {profile.name}: {watts:g} W, {power.title} ({power.source or power.kind})"
    joules = watts * seconds / instances
    return EnergyRecord(joules_per_instance=joules, watts=watts, kind="estimated", source=source)

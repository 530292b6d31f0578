"""What else the host did while a workload was measured: other load, time stolen by a hypervisor, swapping, heat."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgepeft.host.sensors import number

__all__ = ["HostLoad", "Snapshot", "load_between", "snapshot", "worse"]

_IDLE = ("idle", "iowait", "steal", "guest", "guest_nice")  # guest time is in user time already
_SYS = Path("/sys")


@dataclass(frozen=True)
class Snapshot:
    """Counters of the whole host at one moment, in seconds, bytes and events."""

    at: float
    busy_s: float
    stolen_s: float
    swapped_bytes: int
    heat_events: int


@dataclass(frozen=True)
class HostLoad:
    """Between two snapshots: cores that others used or took, bytes swapped, times the processor held back for heat."""

    other_cores: float
    stolen_cores: float
    swapped_bytes: int
    heat_events: int


def snapshot(clock: Callable[[], float] = time.monotonic, sys: Path = _SYS) -> Snapshot:
    """Read the counters; what a system does not count is 0."""
    times = psutil.cpu_times()._asdict()
    try:
        swap = psutil.swap_memory()
        swapped = int(swap.sin) + int(swap.sout)
    except (OSError, RuntimeError):  # a container without /proc/vmstat
        swapped = 0
    busy = sum(seconds for name, seconds in times.items() if name not in _IDLE)
    counters = sys.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")
    heat = sum(int(number(path) or 0) for path in counters)
    return Snapshot(clock(), busy, times.get("steal", 0.0), swapped, heat)


def load_between(before: Snapshot, after: Snapshot, own_s: float) -> HostLoad | None:
    """The load of others: ``own_s`` CPU seconds were ours.  None where no time passed, or the clock went backwards."""
    seconds = after.at - before.at
    if seconds <= 0:
        return None
    return HostLoad(
        max(0.0, (after.busy_s - before.busy_s - own_s) / seconds),
        max(0.0, (after.stolen_s - before.stolen_s) / seconds),
        max(0, after.swapped_bytes - before.swapped_bytes),
        max(0, after.heat_events - before.heat_events),
    )


def worse(one: HostLoad | None, other: HostLoad | None) -> HostLoad | None:
    """Join two stretches of one measurement: the larger of the rates, the sum of the counts."""
    if one is None or other is None:
        return one or other
    return HostLoad(
        max(one.other_cores, other.other_cores),
        max(one.stolen_cores, other.stolen_cores),
        one.swapped_bytes + other.swapped_bytes,
        one.heat_events + other.heat_events,
    )

"""CPU quotas of control groups: how much processor time a wall second, in cores (Linux sched-bwc, cgroup-v2).

Version 1 has ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``, version 2 both in ``cpu.max``. A group's own quota
means little: the tightest of it and the groups around it decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgepeft.host import groups

__all__ = ["SMALLEST_QUOTA", "throttled", "tightest_v1", "tightest_v2", "write_v1", "write_v2"]

_PERIOD_US = 100_000
SMALLEST_QUOTA = 0.01  # the kernel's shortest quota is 1 ms; of our 100 ms period that is a hundredth


def _up(folder: Path | None) -> Iterator[Path]:
    """The group and those around it."""
    while folder is not None and (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def tightest_v1(folder: Path | None) -> float | None:
    """The quota that decides in a version 1 group, in cores; None if unlimited."""
    quotas = []
    for group in _up(folder):
        quota = int(groups.read(group / "cpu.cfs_quota_us") or "-1")
        if quota > 0:
            quotas.append(quota / int(groups.read(group / "cpu.cfs_period_us") or _PERIOD_US))
    return min(quotas, default=None)


def tightest_v2(folder: Path | None) -> float | None:
    """The quota that decides in a version 2 group, in cores; None if unlimited."""
    quotas = []
    for group in _up(folder):
        quota, _, period = (groups.read(group / "cpu.max") or "max").partition(" ")
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def throttled(folder: Path | None) -> tuple[int, int] | None:
    """Periods and throttled periods of a group, from ``cpu.stat``, which both versions have; None without it."""
    text = groups.read(folder / "cpu.stat") if folder is not None else None
    counts = dict(line.split() for line in (text or "").splitlines())
    if "nr_periods" not in counts or "nr_throttled" not in counts:
        return None
    return int(counts["nr_periods"]), int(counts["nr_throttled"])


def write_v1(folder: Path, cores: float) -> None:
    """Set a version 1 group's quota; the period comes first, as the kernel wants it.

    Raises:
        OSError: the controller is not there, or refuses.
    """
    groups.write(folder / "cpu.cfs_period_us", _PERIOD_US)
    groups.write(folder / "cpu.cfs_quota_us", round(cores * _PERIOD_US))


def write_v2(folder: Path, cores: float) -> None:
    """Set a version 2 group's quota.

    Raises:
        OSError: the controller is not there, or refuses.
    """
    groups.write(folder / "cpu.max", f"{round(cores * _PERIOD_US)} {_PERIOD_US}")

"""How many cores this process may use, and which: affinity, control group quotas, topology."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from edgepeft.device.host import groups

__all__ = ["affinity", "affinity_of", "cpu_quota", "pick_cpus", "thread_count", "usable_cores"]

_CPUS = Path("/sys/devices/system/cpu")


def affinity() -> tuple[int, ...]:
    """The processors this process may run on. ``os.cpu_count()`` would ignore affinity and cpusets."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def affinity_of(pid: int) -> tuple[int, ...]:
    """The processors another process may run on; none where it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        return tuple(sorted(os.sched_getaffinity(pid)))
    return ()


def cpu_quota(proc: Path = groups.PROC) -> float | None:
    """Cores' worth of time that control groups (v1 or v2) give this process; None if unlimited."""
    own = groups.groups_of("self", proc)
    held = ((groups.UNIFIED, groups.V2), ("cpu", groups.V1))
    quotas = (groups.tightest_quota(own.get(controller), files) for controller, files in held)
    return min((cores for cores in quotas if cores is not None), default=None)


def usable_cores(proc: Path = groups.PROC) -> int:
    """Cores that can be kept busy: the affinity's count, no more than whole cores of the quota, at least 1.

    A quota of 2.5 gives 2: a third thread would be stopped halfway through every period, and the
    other two would wait for it.
    """
    allowed = cpu_quota(proc)
    cores = len(affinity())
    return cores if allowed is None else max(1, min(cores, int(allowed)))


def thread_count(profile_cores: int | None = None, proc: Path = groups.PROC) -> int:
    """Threads for an engine: min(profile, affinity, quota), at least 1. More would spin in vain."""
    usable = usable_cores(proc)
    return usable if profile_cores is None else max(1, min(profile_cores, usable))


def pick_cpus(count: int, allowed: Iterable[int] | None = None, cpus: Path = _CPUS) -> tuple[int, ...]:
    """``count`` processors out of ``allowed`` (default: the affinity), sorted.

    One thread of every physical core comes first: a board's cores are whole ones, and two
    hyper-threads of one core are not two of those.
    """
    wanted = sorted(affinity() if allowed is None else allowed)
    return tuple(sorted(sorted(wanted, key=lambda cpu: (_rank(cpu, wanted, cpus), cpu))[:count]))


def _rank(cpu: int, allowed: Iterable[int], cpus: Path) -> int:
    """0 for the first allowed thread of its physical core, 1 for the second, ..."""
    siblings = _numbers(groups.read(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu))
    return sum(other < cpu for other in siblings & set(allowed))


def _numbers(text: str) -> set[int]:
    """``0-1,8`` -> {0, 1, 8}."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers

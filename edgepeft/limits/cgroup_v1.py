"""Limits by cgroup v1: one child group per controller, inside the process's own (cgroup-v1/*.rst).

The order of writes is the kernel's: memory before memory+swap, ``cpuset.mems`` before
``cpuset.cpus``, the period before the quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgepeft.host import groups
from edgepeft.limits.placement import GroupPlacement, Limits, Unavailable

__all__ = ["ControllerGroups", "prepare"]


@dataclass
class ControllerGroups(GroupPlacement):
    """Child groups under version 1, by controller; ``memory`` is always among them."""

    backend: ClassVar[str] = "cgroup v1"
    files: groups.MemoryFiles = groups.V1


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> ControllerGroups:
    """Make child groups with ``limits`` in them.

    Raises:
        Unavailable: no version 1, or the own group cannot be used.
    """
    own = groups.groups_of("self", proc)
    if "memory" not in own:
        raise Unavailable("no cgroup v1 memory controller")
    placement = ControllerGroups(cpus=None if cpus is None else tuple(cpus))
    try:
        _limit_memory(placement, own["memory"], limits)
        if cpus is not None and "cpuset" in own:
            _limit_cores(placement, own["cpuset"], cpus)
        if limits.cpu_quota is not None:
            _limit_quota(placement, own, limits.cpu_quota)
    except OSError as error:
        placement.remove()
        where = error.filename or own["memory"]
        raise Unavailable(f"the own cgroup v1 group cannot be used ({where}: {error.strerror})") from error
    except BaseException:
        placement.remove()
        raise
    placement.joins = [folder / "cgroup.procs" for folder in placement.folders.values()]
    return placement


def _limit_memory(placement: ControllerGroups, own: Path, limits: Limits) -> None:
    folder = placement.folders["memory"] = groups.make_child(own)
    if limits.memory_bytes is None:
        return
    groups.write(folder / "memory.limit_in_bytes", limits.memory_bytes)
    if (folder / "memory.memsw.limit_in_bytes").exists():
        groups.write(folder / "memory.memsw.limit_in_bytes", limits.memory_bytes)
    else:
        placement.swap_is_not_limited()


def _limit_cores(placement: ControllerGroups, own: Path, cpus: Sequence[int]) -> None:
    folder = placement.folders["cpuset"] = groups.make_child(own)
    groups.write(folder / "cpuset.mems", groups.read(own / "cpuset.mems") or "0")  # empty at first
    groups.write(folder / "cpuset.cpus", ",".join(map(str, cpus)))


def _limit_quota(placement: ControllerGroups, own: dict[str, Path], cores: float) -> None:
    if "cpu" not in own:
        raise Unavailable("no cgroup v1 cpu controller, which a quota needs")
    folder = placement.folders["cpu"] = groups.make_child(own["cpu"])
    groups.write_quota(folder, groups.V1, cores)

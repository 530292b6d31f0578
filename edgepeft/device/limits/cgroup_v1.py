"""Limits by cgroup v1: one child group per controller, inside the process's own (cgroup-v1/*.rst).

The order of writes is the kernel's: memory before memory+swap, ``cpuset.mems`` before
``cpuset.cpus``, the period before the quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgepeft.device.host import groups
from edgepeft.device.limits.placement import Limits, Placement, Unavailable

__all__ = ["prepare"]


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> Placement:
    """Make child groups with ``limits`` in them."""
    own = groups.groups_of("self", proc)
    if "memory" not in own:
        raise Unavailable("no cgroup v1 memory controller")
    placement = Placement("cgroup v1", cpus, files=groups.V1)
    try:
        _limit_memory(placement, own["memory"], limits)
        if cpus is not None and "cpuset" in own:
            folder = placement.folders["cpuset"] = groups.make_child(own["cpuset"])
            groups.write(folder / "cpuset.mems", groups.read(own["cpuset"] / "cpuset.mems") or "0")  # empty at first
            groups.write(folder / "cpuset.cpus", ",".join(map(str, cpus)))
        if limits.cpu_quota is not None:
            if "cpu" not in own:
                raise Unavailable("no cgroup v1 cpu controller, which a quota needs")
            folder = placement.folders["cpu"] = groups.make_child(own["cpu"])
            groups.write_quota(folder, groups.V1, limits.cpu_quota)
    except OSError as error:
        placement.remove()
        where = error.filename or own["memory"]
        raise Unavailable(f"the own cgroup v1 group cannot be used ({where}: {error.strerror})") from error
    except BaseException:
        placement.remove()
        raise
    placement.joins = [folder / "cgroup.procs" for folder in placement.folders.values()]
    return placement


def _limit_memory(placement: Placement, own: Path, limits: Limits) -> None:
    folder = placement.folders["memory"] = groups.make_child(own)
    if limits.memory_bytes is None:
        return
    groups.write(folder / "memory.limit_in_bytes", limits.memory_bytes)
    if (folder / "memory.memsw.limit_in_bytes").exists():
        groups.write(folder / "memory.memsw.limit_in_bytes", limits.memory_bytes)
    else:
        placement.swap_is_not_limited()

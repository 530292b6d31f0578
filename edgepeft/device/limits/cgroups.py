"""Limits by child groups of cgroup v2 (Linux Documentation/admin-guide/cgroup-v2.rst) and v1 (cgroup-v1/*.rst).

Under v2 the group lies inside the process's own one. Its controllers come from the own group's
``cgroup.subtree_control``; enabling one there is refused with EBUSY while processes live in that
group (the no-internal-process rule), unless it is the root: then systemd's scopes are the way.

Under v1 each controller has a child group. The order of writes is the kernel's: memory before memory+swap,
``cpuset.mems`` before ``cpuset.cpus``, the period before the quota.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from edgepeft.device.host import groups
from edgepeft.device.limits.placement import Limits, Placement, Unavailable

__all__ = ["prepare_v1", "prepare_v2"]


def prepare_v2(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> Placement:
    """Make a child group with ``limits`` in it."""
    own = groups.groups_of("self", proc).get(groups.UNIFIED)
    if own is None:
        raise Unavailable("cgroup v2 is not mounted")
    offered = (groups.read(own / "cgroup.controllers") or "").split()
    if "memory" not in offered:
        raise Unavailable("cgroup v2 does not offer its memory controller to this process")
    try:
        _enable(own, "memory")
        folder = groups.make_child(own)
    except OSError as error:
        raise Unavailable(f"the own cgroup v2 group {own} cannot be used ({error.strerror})") from error
    try:
        return _limited(folder, limits, cpus, offered)
    except OSError as error:
        groups.remove(folder)
        raise Unavailable(f"cgroup v2 refuses {error.filename or folder} ({error.strerror})") from error
    except BaseException:
        groups.remove(folder)
        raise


def _enable(own: Path, controller: str) -> None:
    enabled = groups.read(own / "cgroup.subtree_control") or ""
    if controller not in enabled.split():
        groups.write(own / "cgroup.subtree_control", f"+{controller}")


def _limited(folder: Path, limits: Limits, cpus: Sequence[int] | None, offered: Sequence[str]) -> Placement:
    both = {"memory": folder, "cpu": folder}
    placement = Placement("cgroup v2", cpus, joins=[folder / "cgroup.procs"], folders=both)
    if limits.memory_bytes is not None:
        groups.write(folder / "memory.max", limits.memory_bytes)
        if (folder / "memory.swap.max").exists():
            groups.write(folder / "memory.swap.max", 0)
        else:
            placement.swap_is_not_limited()
    if cpus is not None and "cpuset" in offered:
        # The affinity that the launcher sets limits as well; the cpuset only makes it inescapable.
        with contextlib.suppress(OSError):
            _enable(folder.parent, "cpuset")
            groups.write(folder / "cpuset.cpus", ",".join(map(str, cpus)))
    if limits.cpu_quota is not None:
        if "cpu" not in offered:
            raise Unavailable("cgroup v2 does not offer its cpu controller, which a quota needs, to this process")
        _enable(folder.parent, "cpu")
        groups.write_quota(folder, groups.V2, limits.cpu_quota)
    return placement


def prepare_v1(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> Placement:
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

"""Limits by a cgroup v2 child group (Linux Documentation/admin-guide/cgroup-v2.rst).

The group lies inside the process's own one. Its controllers come from the own group's
``cgroup.subtree_control``; enabling one there is refused with EBUSY while processes live in that
group (the no-internal-process rule), unless it is the root: then systemd's scopes are the way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from edgepeft.device.host import groups
from edgepeft.device.limits.placement import Limits, Placement, Unavailable

__all__ = ["prepare"]


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> Placement:
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

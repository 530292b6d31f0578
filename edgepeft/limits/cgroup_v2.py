"""Limits by a cgroup v2 child group (Linux Documentation/admin-guide/cgroup-v2.rst).

The group lies inside the process's own one. Its controllers come from the own group's
``cgroup.subtree_control``; enabling one there is refused with EBUSY while processes live in that
group (the no-internal-process rule), unless it is the root: then systemd's scopes are the way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from edgepeft.host import groups, quota
from edgepeft.limits.placement import LauncherReport, Limits, Placement, Unavailable

__all__ = ["UnifiedGroup", "prepare"]


@dataclass
class UnifiedGroup(Placement):
    """A child group under version 2."""

    backend: ClassVar[str] = "cgroup v2"
    folder: Path = field(default_factory=Path)

    def entered(self, report: LauncherReport) -> None:
        """Check that the child's pid is in the group."""
        if not self.holds(report.pid):
            raise Unavailable("the child did not enter its group")

    def memory_in_force(self, report: LauncherReport) -> int | None:
        """The smallest ``memory.max`` from the group up."""
        return groups.smallest_limit(self.folder, groups.V2)

    def quota_in_force(self) -> float | None:
        """The smallest ``cpu.max`` from the group up, in cores."""
        return quota.tightest_v2(self.folder)

    def change_quota(self, cores: float) -> None:
        """Write ``cpu.max``."""
        quota.write_v2(self.folder, cores)

    def throttled(self) -> tuple[int, int] | None:
        """From ``cpu.stat``."""
        return quota.throttled(self.folder)

    def holds(self, pid: int) -> bool:
        """Whether the process is in the group."""
        return str(pid) in (groups.read(self.folder / "cgroup.procs") or "").split()

    def oom_kills(self) -> int:
        """From ``memory.events``."""
        return groups.oom_kills(self.folder, groups.V2)

    def peak_bytes(self) -> int | None:
        """``memory.peak`` (Linux 5.19 and later)."""
        return groups.read_bytes(self.folder / groups.V2.peak)

    def remove(self) -> None:
        """Kill and remove; the controllers stay enabled, since a neighbour may use them by now."""
        groups.remove(self.folder)


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC) -> UnifiedGroup:
    """Make a child group with ``limits`` in it.

    Raises:
        Unavailable: no version 2, no memory controller in it, or the own group cannot be used.
    """
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


def _limited(folder: Path, limits: Limits, cpus: Sequence[int] | None, offered: Sequence[str]) -> UnifiedGroup:
    placement = UnifiedGroup(cpus=None if cpus is None else tuple(cpus), joins=[folder / "cgroup.procs"], folder=folder)
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
        quota.write_v2(folder, limits.cpu_quota)
    return placement

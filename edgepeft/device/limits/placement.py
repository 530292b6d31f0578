"""Requested limits, limits in force, and the interface of a backend.

A backend is a function called ``prepare...``. It makes whatever holds the limits (a cgroup, a systemd scope,
nothing) and returns a :class:`Placement`: how the launcher enters it, how the parent
reads back what is in force, and how it is taken down again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from edgepeft.common.errors import UsageError
from edgepeft.device.host import groups
from edgepeft.device.host.groups import SMALLEST_QUOTA

__all__ = ["Emulation", "InForce", "LauncherReport", "Limits", "Placement", "Unavailable", "prepare_rlimit"]


Emulation = Literal["full", "partial", "none"]
_SMALLEST_MEMORY = 1 << 20  # below this no process starts at all: a unit was mistaken


@dataclass(frozen=True)
class Limits:
    """What a child process may use; None leaves that resource as the host has it.

    ``cores``: how many processors it may run on. ``memory_bytes``: of memory, swap excluded.
    ``cpu_quota``: processor seconds a wall second, summed over cores (0.5 is half a core).
    """

    cores: int | None = None
    memory_bytes: int | None = None
    cpu_quota: float | None = None

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores < 1:
            raise UsageError(f"a limit of {self.cores} cores: at least 1 is needed.")
        if self.memory_bytes is not None and self.memory_bytes < _SMALLEST_MEMORY:
            raise UsageError(f"a memory limit of {self.memory_bytes} bytes: at least {_SMALLEST_MEMORY} needed.")
        if self.cpu_quota is not None and not self.cpu_quota >= SMALLEST_QUOTA:
            raise UsageError(
                f"a quota of {self.cpu_quota:g} cores: at least {SMALLEST_QUOTA} is needed, the kernel's shortest is "
                "1 ms in each 100 ms."
            )


@dataclass(frozen=True)
class InForce:
    """The limits as read back from the kernel, which are not always the requested ones.

    ``cores``: processors the child may run on. ``memory_bytes``: None where nothing limits it.
    ``emulation``: "full" if cores and memory are both exactly as asked, "none" if neither holds.
    """

    backend: str
    cores: int
    memory_bytes: int | None
    emulation: Emulation
    notes: tuple[str, ...] = ()
    cpu_quota: float | None = None


class Unavailable(Exception):
    """A backend cannot be used here; the reason goes into the notes and the next one is tried."""


@dataclass(frozen=True)
class LauncherReport:
    """What the launcher saw inside the limits, just before it became the work."""

    pid: int
    cpus: tuple[int, ...]
    address_space_bytes: int | None


@dataclass
class Placement:
    """A place with limits, ready for one child: the control groups made for it, or what the launcher sets of itself.

    ``folders`` are the groups by controller; under version 2 one group has all controllers.
    """

    backend: str
    cpus: Sequence[int] | None = None  # the launcher sets this affinity
    wrapper: Sequence[str] = ()  # argv that comes before the launcher's
    joins: Sequence[Path] = ()  # cgroup.procs files that the launcher writes its pid to
    address_space_bytes: int | None = None  # RLIMIT_AS, set by the launcher
    keeper: bool = False  # leave a small process behind that keeps the place alive
    notes: list[str] = field(default_factory=list)
    memory_is_strict: bool = True  # False: what is limited is not quite memory
    files: groups.MemoryFiles = groups.V2
    folders: dict[str, Path] = field(default_factory=dict)

    def swap_is_not_limited(self) -> None:
        """Note it where the host has swap: the child can then use more than its memory."""
        if psutil.swap_memory().total:
            self.memory_is_strict = False
            self.notes.append("this kernel does not limit swap: the work may go beyond its memory into it")

    def entered(self, report: LauncherReport) -> None:
        """Check, once the child is inside, that its pid is in every group."""
        if not self.holds(report.pid):
            raise Unavailable(f"the child did not enter its group{'s' * (self.files is groups.V1)}")

    def memory_in_force(self, report: LauncherReport) -> int | None:
        """Bytes that the child may use, read back: the smallest limit from the group up; None if unlimited."""
        folder = self.folders.get("memory")
        return report.address_space_bytes if folder is None else groups.smallest_limit(folder, self.files)

    def quota_in_force(self) -> float | None:
        """Cores' worth of time that the child may use, read back: the smallest from the group up; None if unlimited."""
        return groups.tightest_quota(self.folders.get("cpu"), self.files)

    def change_quota(self, cores: float) -> None:
        """Change the quota of the child that runs there."""
        if (folder := self.folders.get("cpu")) is None:
            raise Unavailable(f"the child was started by {self.backend}, with no CPU quota")
        groups.write_quota(folder, self.files, cores)

    def throttled(self) -> tuple[int, int] | None:
        """Periods of the quota, and in how many of them it was used up; None where they are not counted."""
        return groups.throttled(self.folders.get("cpu"))

    def holds(self, pid: int) -> bool:
        """Whether process ``pid`` still is where it was put: a group may be removed, a process moved."""
        return all(str(pid) in (groups.read(folder / "cgroup.procs") or "").split() for folder in self.folders.values())

    def oom_kills(self) -> int:
        """How many processes the kernel killed for memory in this place."""
        folder = self.folders.get("memory")
        return 0 if folder is None else groups.oom_kills(folder, self.files)

    def peak_bytes(self) -> int | None:
        """The most memory in use, under version 1 with the page cache that the child brought in; None if not known."""
        folder = self.folders.get("memory")
        return None if folder is None else groups.read_bytes(folder / self.files.peak)

    def remove(self) -> None:
        """Kill whoever is left and remove every group; may be called twice.

        Enabled controllers stay, as a neighbour may use them by now.
        """
        for folder in dict.fromkeys(self.folders.values()):
            groups.remove(folder)


def prepare_rlimit(limits: Limits, cpus: Sequence[int] | None) -> Placement:
    """Limits without privileges, for the launcher to set: affinity and RLIMIT_AS (sched_setaffinity(2), setrlimit(2)).

    This always works, as far as the system goes. RLIMIT_AS counts address space, which is more than memory in use
    (mapped files, reserved arenas), so it is stricter than a device's memory: it is reported as partial.
    """
    space = limits.memory_bytes
    placement = Placement("affinity and rlimit", cpus, address_space_bytes=space, memory_is_strict=False)
    if space is not None:
        placement.notes.append("memory is limited as address space (RLIMIT_AS), stricter than a device's memory")
    if sys.platform != "linux":
        placement.notes.append(f"{sys.platform} has no processor affinity: the cores are not limited")
    return placement

"""Requested limits, limits in force, and the backends: each ``prepare...`` makes what holds limits, a `Placement`.

Under cgroup v2 (Linux Documentation/admin-guide/cgroup-v2.rst) the group lies inside the process's own one, whose
``cgroup.subtree_control`` gives it controllers; enabling one there is refused with EBUSY while processes live in that
group (the no-internal-process rule), unless it is the root: then systemd's scopes are the way.

Under v1 (cgroup-v1/*.rst) each controller has a child group. The order of writes is the kernel's: memory before
memory+swap, ``cpuset.mems`` before ``cpuset.cpus``, the period before the quota.

A scope is for users whose own group is not theirs to divide: ``systemd-run --scope`` (systemd-run(1),
systemd.resource-control(5)) starts the launcher in a group of its own and removes that group when its last process
ends. So that the counters can be read after the work ended, a keeper stays in it until the parent lets go.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from edgepeft.common.errors import UsageError
from edgepeft.device import cgroups
from edgepeft.device.cgroups import SMALLEST_QUOTA

Emulation = Literal["full", "partial", "none"]
BOOTED = Path("/run/systemd/system")  # sd_booted(3): systemd is the init if this folder is there
_PROBE_SECONDS = 20.0
# What version 2 and version 1 call the same file; a group has one of them.
_PEAK = ("memory.peak", "memory.max_usage_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")
_SMALLEST_MEMORY = 1 << 20  # below this no process starts at all: a unit was mistaken


@dataclass(frozen=True)
class Limits:
    """Limits of a child process; None leaves that resource as the host has it."""

    cores: int | None = None  # processors that it may run on
    memory_bytes: int | None = None  # swap excluded
    cpu_quota: float | None = None  # processor seconds a wall second, summed over cores (0.5 is half a core)

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
    """The limits as read back from the kernel, which are not always the requested ones."""

    backend: str
    cores: int  # processors that the child may run on
    memory_bytes: int | None  # None where nothing limits it
    emulation: Emulation  # full if cores and memory are both exactly as asked, none if neither holds
    notes: tuple[str, ...] = ()
    cpu_quota: float | None = None


class Unavailable(Exception):
    """A backend cannot be used here; the reason goes into the notes and the next one is tried."""


@dataclass
class Placement:
    """A place with limits, ready for one child: the control groups made for it, or what the launcher sets of itself."""

    backend: str
    cpus: Sequence[int] | None = None  # the launcher sets this affinity
    wrapper: Sequence[str] = ()  # argv that comes before the launcher's
    joins: Sequence[Path] = ()  # cgroup.procs files that the launcher writes its pid to
    address_space_bytes: int | None = None  # RLIMIT_AS, set by the launcher
    keeper: bool = False  # leave a small process behind that keeps the place alive
    notes: list[str] = field(default_factory=list)
    memory_is_strict: bool = True  # False: what is limited is not quite memory
    folders: dict[str, Path] = field(default_factory=dict)  # the groups by controller; version 2 has one for all

    def limit_memory(self, n_bytes: int, limit: str, swap: str, with_swap: int) -> None:
        """Write these files of the memory's group; where there is none for swap, the child can use more than that."""
        folder = self.folders["memory"]
        cgroups.write(folder / limit, n_bytes)
        if (folder / swap).exists():
            cgroups.write(folder / swap, with_swap)
        elif psutil.swap_memory().total:
            self.memory_is_strict = False
            self.notes.append("this kernel does not limit swap: the work may go beyond its memory into it")

    def entered(self, pid: int) -> None:
        """Check, once the child is inside, that it is in every group."""
        if not self.holds(pid):
            raise Unavailable(f"the child did not enter its group{'s' * (len(self.joins) > 1)}")

    def memory_in_force(self) -> int | None:
        """Bytes that the child's group allows, read back: the smallest from the group up; None if unlimited."""
        return cgroups.smallest_limit(self.folders.get("memory"))

    def quota_in_force(self) -> float | None:
        """Cores' worth of time that the child may use, read back: the smallest from the group up; None if unlimited."""
        return cgroups.tightest_quota(self.folders.get("cpu"))

    def change_quota(self, cores: float) -> None:
        """Change the quota of the child that runs there."""
        if (folder := self.folders.get("cpu")) is None:
            raise Unavailable(f"the child was started by {self.backend}, with no CPU quota")
        cgroups.write_quota(folder, cores)

    def holds(self, pid: int) -> bool:
        """Whether process ``pid`` still is where it was put: a group may be removed, a process moved."""
        inside = (cgroups.read(folder / "cgroup.procs") or "" for folder in self.folders.values())
        return all(str(pid) in pids.split() for pids in inside)

    def throttled(self) -> tuple[int, int] | None:
        """Periods and throttled periods, from ``cpu.stat``, which both versions have; None without it."""
        counts = cgroups.counts(folder / "cpu.stat") if (folder := self.folders.get("cpu")) else {}
        return (counts["nr_periods"], counts["nr_throttled"]) if {"nr_periods", "nr_throttled"} <= {*counts} else None

    def oom_kills(self) -> int:
        """How many processes the kernel killed for memory in this place (``failcnt`` counts other things too)."""
        folder = self.folders.get("memory")
        return sum(cgroups.counts(folder / name).get("oom_kill", 0) for name in _EVENTS) if folder else 0

    def peak_bytes(self) -> int | None:
        """The most memory in use, under version 1 with the page cache that processes brought in; None if not known."""
        folder = self.folders.get("memory")
        sizes = (cgroups.read_bytes(folder / name) for name in _PEAK) if folder else ()
        return next((size for size in sizes if size is not None), None)

    def remove(self) -> None:
        """Kill whoever is left, remove every group; enabled controllers stay, for neighbours. May be called twice."""
        for folder in dict.fromkeys(self.folders.values()):
            cgroups.remove(folder)


def prepare_v2(limits: Limits, cpus: Sequence[int] | None, proc: Path = cgroups.PROC) -> Placement:
    """Make a child group with ``limits`` in it."""
    if (own := cgroups.groups_of("self", proc).get(cgroups.UNIFIED)) is None:
        raise Unavailable("cgroup v2 is not mounted")
    offered = (cgroups.read(own / "cgroup.controllers") or "").split()
    if "memory" not in offered:
        raise Unavailable("cgroup v2 does not offer its memory controller to this process")
    try:
        _enable(own, "memory")
        folder = cgroups.make_child(own)
    except OSError as error:
        raise Unavailable(f"the own cgroup v2 group {own} cannot be used ({error.strerror})") from error
    placement = Placement("cgroup v2", cpus, joins=[folder / "cgroup.procs"], folders={"memory": folder, "cpu": folder})
    try:
        if limits.memory_bytes is not None:
            placement.limit_memory(limits.memory_bytes, "memory.max", "memory.swap.max", 0)
        if cpus is not None and "cpuset" in offered:
            # The affinity that the launcher sets limits as well; the cpuset only makes it inescapable.
            with contextlib.suppress(OSError):
                _enable(own, "cpuset")
                cgroups.write(folder / "cpuset.cpus", ",".join(map(str, cpus)))
        if limits.cpu_quota is not None:
            if "cpu" not in offered:
                raise Unavailable("cgroup v2 does not offer its cpu controller, which a quota needs, to this process")
            _enable(own, "cpu")
            cgroups.write_quota(folder, limits.cpu_quota)
    except BaseException as error:
        cgroups.remove(folder)
        if isinstance(error, OSError):
            raise Unavailable(f"cgroup v2 refuses {error.filename or folder} ({error.strerror})") from error
        raise
    return placement


def _enable(own: Path, controller: str) -> None:
    if controller not in (cgroups.read(own / "cgroup.subtree_control") or "").split():
        cgroups.write(own / "cgroup.subtree_control", f"+{controller}")


def prepare_v1(limits: Limits, cpus: Sequence[int] | None, proc: Path = cgroups.PROC) -> Placement:
    """Make child groups with ``limits`` in them."""
    own = cgroups.groups_of("self", proc)
    if "memory" not in own:
        raise Unavailable("no cgroup v1 memory controller")
    placement = Placement("cgroup v1", cpus)
    try:
        placement.folders["memory"] = cgroups.make_child(own["memory"])
        if (size := limits.memory_bytes) is not None:
            placement.limit_memory(size, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", size)
        if cpus is not None and "cpuset" in own:
            folder = placement.folders["cpuset"] = cgroups.make_child(own["cpuset"])
            cgroups.write(folder / "cpuset.mems", cgroups.read(own["cpuset"] / "cpuset.mems") or "0")  # empty at first
            cgroups.write(folder / "cpuset.cpus", ",".join(map(str, cpus)))
        if limits.cpu_quota is not None:
            if "cpu" not in own:
                raise Unavailable("no cgroup v1 cpu controller, which a quota needs")
            folder = placement.folders["cpu"] = cgroups.make_child(own["cpu"])
            cgroups.write_quota(folder, limits.cpu_quota)
    except BaseException as error:
        placement.remove()
        if isinstance(error, OSError):
            where = error.filename or own["memory"]
            raise Unavailable(f"the own cgroup v1 group cannot be used ({where}: {error.strerror})") from error
        raise
    placement.joins = [folder / "cgroup.procs" for folder in placement.folders.values()]
    return placement


@dataclass
class Scope(Placement):
    """One scope; which group that is, is known once the child is inside."""

    backend: str = "systemd scope"
    proc: Path = cgroups.PROC
    unit: str = ""

    def entered(self, pid: int) -> None:
        """Find the scope's memory group, version 2's or 1's."""
        own = cgroups.groups_of(pid, self.proc)
        folder = own.get("memory", own.get(cgroups.UNIFIED))
        if folder is None or self.unit not in folder.name:
            raise Unavailable("systemd-run started the child outside its scope")
        cpu = own.get("cpu") if "memory" in own else folder
        self.folders = {"memory": folder} | ({} if cpu is None else {"cpu": cpu})

    def change_quota(self, cores: float) -> None:
        """Set it through systemd, which may undo what others set."""
        command = [shutil.which("systemctl") or "systemctl", "set-property", "--runtime"]
        user = [] if os.geteuid() == 0 else ["--user"]
        _probe([*command, *user, f"{self.unit}.scope", f"CPUQuota={_percent(cores)}"])

    def remove(self) -> None:
        """Nothing: systemd removes a scope with its last process."""


def prepare_scope(
    limits: Limits, cpus: Sequence[int] | None, proc: Path = cgroups.PROC, booted: Path = BOOTED
) -> Scope:
    """A scope with ``limits``, tried once with a program that does nothing."""
    program = shutil.which("systemd-run")
    if program is None or not booted.is_dir():
        raise Unavailable("systemd does not run here")
    unit = f"edgepeft-{os.getpid()}-{secrets.token_hex(4)}"
    # Delegated, a scope survives the death of one of its processes for memory (OOMPolicy=continue).
    wanted = ["Delegate=yes"]
    if limits.memory_bytes is not None:
        wanted += [f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0"]
    if cpus is not None:
        wanted.append(f"AllowedCPUs={','.join(map(str, cpus))}")
    if limits.cpu_quota is not None:
        wanted.append(f"CPUQuota={_percent(limits.cpu_quota)}")
    options = [part for property_ in wanted for part in ("-p", property_)]
    _probe([*_command(program, f"{unit}-probe"), *options, "--", "true"])
    return Scope(cpus=cpus, wrapper=[*_command(program, unit), *options, "--"], keeper=True, proc=proc, unit=unit)


def _command(program: str, unit: str) -> list[str]:
    # --collect: a scope whose process was killed for memory must not stay as a failed unit.
    command = [program, "--scope", "--quiet", "--collect", "--no-ask-password", f"--unit={unit}"]
    return command if os.geteuid() == 0 else [*command, "--user"]


def _percent(cores: float) -> str:
    """Per cent of one core, to the tenth, which is systemd's precision (systemd.resource-control(5))."""
    return f"{100 * cores:.1f}%".replace(".0%", "%")


def _probe(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} does not answer ({type(error).__name__})") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"{Path(command[0]).name} refused: {lines[0]}")


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

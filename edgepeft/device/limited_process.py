"""Run a program under a device's cores and memory (SPARTAN, arXiv:2211.16634, appendix F).

The limits hold a child process, never this one. Backends are tried in order, and what holds is read back from the
kernel. The program is started through the launcher, which enters the limits, reports, waits for a byte, and becomes the
work: a backend that turns out not to hold is given up before anything ran under it.
"""

import contextlib
import errno
import json
import mmap
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError, says_out_of_memory
from edgepeft.device import launcher, placement
from edgepeft.device.machine import affinity, cpu_quota, pick_cpus, usable_cores
from edgepeft.device.placement import Emulation, InForce, Limits, Placement, Unavailable

_START_SECONDS = 60.0  # an emulated or heavily loaded board needs a while to start Python
_LOADS_NOTHING = 32 << 20  # bytes of address space that no Python, let alone a runtime, is loaded in
_QUOTA_STEP = 0.0006  # systemd rounds to a tenth of a per cent of a core


class NoMemoryToStart(Exception):
    """The limit is too small for the launcher, or for loading the program at all."""


Prepare = Callable[[Limits, Sequence[int] | None], Placement]

# In order of preference; the last one always works.
BACKENDS: tuple[Prepare, ...] = (
    placement.prepare_v2,
    placement.prepare_v1,
    placement.prepare_scope,
    placement.prepare_rlimit,
)


class LimitedProcess(contextlib.AbstractContextManager["LimitedProcess"]):
    """A program running under limits; a context manager that kills it at its end and leaves nothing behind.

    ``in_force`` is what limits it, ``popen`` the running process; the counters stay readable afterwards.
    """

    def __init__(self, argv: Sequence[str], limits: Limits, *, backends: Sequence[Prepare] = BACKENDS, **popen: Any):
        """Start it; ``backends`` are tried in order, ``popen`` is for :class:`subprocess.Popen`.

        Standard input and output are pipes, and errors go where this process's go, unless ``popen`` says otherwise.
        """
        self.limits = limits
        self._resident_peak: int | None = None
        cpus = None if limits.cores is None else pick_cpus(min(limits.cores, usable_cores()))
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **popen}
        refused: list[str] = []
        for prepare in backends:
            try:
                self._start(prepare(limits, cpus), list(argv), options, refused)
                return
            except Unavailable as reason:
                refused.append(str(reason))
        raise EdgepeftError(f"no way to limit a process works here: {'; '.join(refused)}.")

    def _start(self, placement: Placement, argv: list[str], options: dict[str, Any], refused: Sequence[str]) -> None:
        """Start ``argv`` in ``placement``, or take it down again and say why not."""
        self._placement, self._held = placement, contextlib.ExitStack()
        self._final: tuple[int, int | None] | None = None
        self._held.callback(placement.remove)
        try:
            self._launch(placement, argv, options)
            report = self._report()
            placement.entered(report["pid"])
            self._cores_at_start = len(report["cpus"])
            space: int | None = report["address_space_bytes"]
            self.in_force = judge(self.limits, placement, self._cores_at_start, space, refused)
            self._group_at_start = (placement.memory_in_force(), placement.quota_in_force())
            self._go(argv[0])
        except NoMemoryToStart:
            self.close()
            raise self._error() from None
        except BaseException:
            self.close()
            raise

    def _launch(self, placement: Placement, argv: list[str], options: dict[str, Any]) -> None:
        """Start the launcher; of a second socket our end keeps the keeper."""
        ours, theirs = zip(*(socket.socketpair() for _ in range(1 + placement.keeper)), strict=True)
        self._launcher: socket.socket = ours[0]
        with contextlib.ExitStack() as sent:
            for end, other in zip(ours, theirs, strict=True):
                self._held.enter_context(end)
                sent.enter_context(other)
            self._held.callback(self._keep_counters)
            spec: dict[str, Any] = {"fds": [end.fileno() for end in theirs], "cpus": placement.cpus}
            spec |= {"joins": [*map(str, placement.joins)], "address_space_bytes": placement.address_space_bytes}
            # -I -S: the launcher must not be slowed down or altered by the work's environment.
            start = [sys.executable, "-I", "-S", launcher.__file__, json.dumps(spec)]
            command = [*placement.wrapper, *start, *argv]
            # After the launcher's exec its pid is the work's.
            self.popen: subprocess.Popen[Any] = subprocess.Popen(command, pass_fds=spec["fds"], **options)
            self._held.callback(self._stop)

    def _report(self) -> dict[str, Any]:
        """Read what the launcher sees inside the limits: ``pid``, ``cpus``, ``address_space_bytes``; then it waits."""
        if (seen := self._next()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(1)  # a kill for memory is counted by then
            # A scope's counters went with it; nothing else kills a launcher in its first milliseconds.
            if self._placement.oom_kills() or self.popen.poll() == -signal.SIGKILL:
                raise NoMemoryToStart
            raise Unavailable(f"the launcher did not start under {self._placement.backend}")
        if "stage" in seen:
            raise Unavailable(f"the child could not enter its group ({seen['reason']})")
        return seen

    def _go(self, program: str) -> None:
        """Let the work start, and return when it has."""
        with contextlib.suppress(OSError):  # it died meanwhile: the next line finds that out
            self._launcher.sendall(b"g")
        failure = self._next()  # the end is the good case: the launcher's socket closes with the exec
        if failure is not None:
            raise UsageError(f"the program {program!r} cannot be started: {failure['reason']}.")

    def _next(self) -> dict[str, Any] | None:
        """The launcher's next line, after which it waits; None at its end, or if it hangs (a password prompt)."""
        self._launcher.settimeout(_START_SECONDS)
        with contextlib.suppress(OSError), self._launcher.makefile("rb") as said:
            line = said.readline()
            document: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
            if document and (document.get("reason") == "MemoryError" or document.get("errno") == errno.ENOMEM):
                raise NoMemoryToStart
            return document
        return None

    def change_quota(self, cores: float) -> float:
        """Give the running program another quota; return the one in force, lower where a group around it is tighter."""
        Limits(cpu_quota=cores)  # that it is one
        try:
            self._placement.change_quota(cores)
        except (OSError, Unavailable) as error:
            raise EdgepeftError(f"a CPU quota of {cores:g} cores cannot be set: {error}.") from error
        if (quota := self._placement.quota_in_force()) is None:
            raise EdgepeftError(f"a CPU quota of {cores:g} cores was set, none is in force.")
        self._group_at_start = (self._group_at_start[0], quota)
        return quota

    def throttled(self) -> tuple[int, int] | None:
        """Periods of the quota so far, and in how many of them the program used it up."""
        return self._placement.throttled()

    def lost(self) -> str | None:
        """Say which limit no longer holds on the running program; None where all is as it was at the start."""
        if self._final is not None or self.popen.poll() is not None:
            return None
        if not self._placement.holds(self.popen.pid):
            return f"the program left its group ({self._placement.backend}): it was moved, or the group removed"
        cpus = affinity(self.popen.pid)
        if self.limits.cores is not None and len(cpus) > self._cores_at_start:
            return f"the program may run on {len(cpus)} cores, at the start on {self._cores_at_start}"
        now = (self._placement.memory_in_force(), self._placement.quota_in_force())
        for what, current, before in zip(("memory limit", "CPU quota"), now, self._group_at_start, strict=True):
            if current != before:
                return f"the {what} changed from {before} to {current} while the program ran"
        return None

    def oom_killed(self) -> bool:
        """Whether the kernel killed the program, or a part of it, for memory."""
        return (self._final[0] if self._final else self._placement.oom_kills()) > 0

    def peak_bytes(self) -> int | None:
        """The most memory used: the group's counter, else the resident peak while the program lives."""
        if self._final:
            return self._final[1]
        if (peak := self._placement.peak_bytes()) is not None:
            return peak
        with contextlib.suppress(OSError, psutil.Error):
            self._resident_peak = _resident_peak(self.popen.pid) or self._resident_peak
        return self._resident_peak

    def raise_if_out_of_memory(self, stderr: str = "") -> None:
        """Call when the program failed; ``stderr`` (its last words) is the evidence under RLIMIT_AS."""
        allowed, refused = self._placement.address_space_bytes, False
        if allowed is not None:  # by the program's own words; an exec without room for it ends in a segmentation fault
            unloadable = allowed < _LOADS_NOTHING and self.popen.poll() == -signal.SIGSEGV
            refused = unloadable or says_out_of_memory(stderr)
        if refused or self.oom_killed():
            raise self._error()

    def _error(self) -> DoesNotFit:
        in_force = getattr(self, "in_force", None)  # none where it did not start
        allowed = (in_force and in_force.memory_bytes) or self.limits.memory_bytes or 0
        return DoesNotFit(
            f"the work does not fit: {allowed} bytes ({allowed / 1e6:.0f} MB) of memory are allowed,"
            " more than that needed. Take a smaller batch or length, or a profile with more memory."
        )

    def close(self) -> None:
        """Stop the program if it runs, keep its counters, end the keeper, remove the groups. May be called twice."""
        self._held.close()

    def _stop(self) -> None:
        self.peak_bytes()
        with contextlib.suppress(OSError, ValueError), self.popen:  # what was buffered for a dead reader
            self.popen.kill()  # a paused process dies of SIGKILL too
        self.popen.wait()  # which a pipe that cannot be closed leaves out

    def _keep_counters(self) -> None:
        self._final = (self._placement.oom_kills(), self._placement.peak_bytes() or self._resident_peak)

    def __exit__(self, *_: object) -> None:
        self.close()


def _resident_peak(pid: int) -> int | None:
    """VmHWM of a living process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def judge(
    limits: Limits, placement: Placement, allowed: int, address_space: int | None, refused: Sequence[str] = ()
) -> InForce:
    """Tell what is in force on a child in ``placement``, on ``allowed`` processors; ``refused`` are other backends."""
    notes = [*placement.notes]
    grades = []
    cores = allowed
    memory = held = placement.memory_in_force() if placement.folders else address_space
    if (asked := limits.cores) is not None:  # what it can keep busy: less what a quota around us takes
        around = cpu_quota()
        if around is not None and around < cores:
            notes.append(f"a control group around this process gives {around:g} cores' time")
            cores = max(1, int(around))
        if cores < asked:
            notes.append(f"the host has {cores} usable cores, the profile {asked}: clamped to {cores}")
        elif cores > asked:
            notes.append(f"{asked} cores were asked for, {cores} are in force")
        grades.append(cores == asked)
    if (size := limits.memory_bytes) is not None:
        if (host := psutil.virtual_memory().total) < size:
            notes.append(f"the host has {host} bytes of memory, the profile {size}: it ends earlier than the device")
            memory = host if held is None else min(held, host)
        elif held is None:
            notes.append("memory is not limited")
        elif abs(held - size) >= mmap.PAGESIZE:  # limits are kept in whole pages
            notes.append(f"{size} bytes of memory were asked for, {held} are in force")
        exact = host >= size and held is not None and abs(held - size) < mmap.PAGESIZE
        grades.append(exact and placement.memory_is_strict)
    quota = placement.quota_in_force()
    if limits.cpu_quota is not None:
        grades.append(quota is not None and abs(quota - limits.cpu_quota) <= _QUOTA_STEP)
        if not grades[-1]:
            in_force = "none" if quota is None else f"{quota:g}"
            notes.append(f"a quota of {limits.cpu_quota:g} cores was asked for, {in_force} is in force")
    if refused and placement.backend != "cgroup v1":  # without version 2, version 1 is the ordinary way
        notes.append(f"not used: {'; '.join(refused)}")
    # Whether anything asked holds the child at all, though not exactly as asked.
    fewer = limits.cores is not None and allowed < len(affinity())
    less = limits.memory_bytes is not None and held is not None
    anything = any(grades) or fewer or less
    emulation: Emulation = "full" if grades and all(grades) else "partial" if anything else "none"
    return InForce(placement.backend, cores, memory, emulation, tuple(notes), quota)

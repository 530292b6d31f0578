"""How exactly limits hold on this machine: small programs that run into each of them, for a few seconds.

Memory: a program takes more until it is killed; the group's own peak against the limit. Cores: how many different
processors busy programs were ever seen on. CPU share: processor time (/proc/PID/schedstat, in nanoseconds) that a
spinning program got in a time that is a multiple of the quota's period, read from outside.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgepeft.device.host.machine import usable_cores
from edgepeft.device.limits.limited_process import BACKENDS, LimitedProcess, Limits, Prepare

__all__ = ["MEMORY_TOLERANCE", "SHARE_TOLERANCE", "TrialResult", "try_limits"]

MEMORY_TOLERANCE, SHARE_TOLERANCE = 0.01, 0.02
_MEMORY = 256 << 20
_SHARE_SECONDS = 5.0  # 50 periods
_SETTLE_SECONDS = 0.5
_ALWAYS = 0.95  # of the periods: a spinning program uses up its quota in each, unless others take the processors
_LOOKS, _LOOK_SECONDS = 100, 0.01

_GROW = "blocks = []\nwhile True: blocks.append(bytes(1 << 18) + b'x')"
# Prints the pids of its spinning processes, one a core, and waits for them.
_SPIN = """
import os, sys
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        while True: pass
    print(pid, flush=True)
os.wait()
"""


@dataclass(frozen=True)
class TrialResult:
    """One limit as it was asked for and as it was seen to hold. ``error`` is relative; None for a count.

    ``good`` is None where the host was too busy to tell: a program that gets less than its quota was not stopped by it.
    """

    what: str
    backend: str
    asked: float
    seen: float
    unit: str
    error: float | None
    good: bool | None


def try_limits(
    *, backends: Sequence[Prepare] = BACKENDS, shares: Sequence[float] = (0.25, 0.5), seconds: float = _SHARE_SECONDS
) -> list[TrialResult]:
    """Memory, cores and CPU shares, each in a program of its own."""
    cores = usable_cores()
    results = [_memory(backends)]
    results += [_cores(number, backends) for number in sorted({1, cores})]
    results += [_share(share * cores, backends, seconds) for share in shares]
    return results


def _memory(backends: Sequence[Prepare]) -> TrialResult:
    program = [sys.executable, "-c", _GROW]
    limits = Limits(cores=1, memory_bytes=_MEMORY)
    process = LimitedProcess(program, limits, stderr=subprocess.DEVNULL, backends=backends)
    with process:
        process.popen.wait()
        process.peak_bytes()
    # Killed is what counts: under RLIMIT_AS an allocation is refused, and the resident peak stays well below.
    peak, killed = process.peak_bytes() or 0, process.oom_killed()
    error = peak / _MEMORY - 1
    good = killed and abs(error) <= MEMORY_TOLERANCE
    return TrialResult("memory when killed", process.in_force.backend, _MEMORY, peak, "bytes", error, good)


@contextlib.contextmanager
def _spinning(number: int, limits: Limits, backends: Sequence[Prepare]) -> Iterator[tuple[LimitedProcess, list[int]]]:
    """A program that keeps ``number`` processors busy, and the pids of its parts."""
    program = [sys.executable, "-c", _SPIN, str(number)]
    with LimitedProcess(program, limits, text=True, backends=backends) as process:
        assert process.popen.stdout is not None
        pids = [int(process.popen.stdout.readline()) for _ in range(number)]
        try:
            yield process, pids
        finally:
            for pid in pids:
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).kill()


def _cores(number: int, backends: Sequence[Prepare]) -> TrialResult:
    with _spinning(number + 1, Limits(cores=number), backends) as (process, pids):
        seen: set[int] = set()
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            seen |= {psutil.Process(pid).cpu_num() for pid in pids}
    return TrialResult(
        "cores in use",
        process.in_force.backend,
        process.in_force.cores,
        len(seen),
        "cores",
        None,
        len(seen) == process.in_force.cores,
    )


def _share(quota: float, backends: Sequence[Prepare], seconds: float) -> TrialResult:
    cores = usable_cores()
    with _spinning(cores, Limits(cores=cores, cpu_quota=quota), backends) as (process, pids):
        time.sleep(_SETTLE_SECONDS)
        before, began, counted = _used(pids), time.monotonic(), process.throttled()
        time.sleep(seconds)
        used, took, stopped = _used(pids) - before, time.monotonic() - began, process.throttled()
    error = used / took / quota - 1
    good: bool | None = process.in_force.cpu_quota is not None and abs(error) <= SHARE_TOLERANCE
    if not good and error < 0 and counted is not None and stopped is not None:
        periods, throttled = stopped[0] - counted[0], stopped[1] - counted[1]
        good = None if throttled < _ALWAYS * periods else good
    return TrialResult("CPU share", process.in_force.backend, quota, used / took, "cores", error, good)


def _used(pids: Sequence[int]) -> float:
    """Processor seconds."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9

"""What may go wrong on this machine, before it does: the findings of ``edgepeft doctor``. Nothing is changed.

``try_limits`` says how exactly limits hold, by small programs that run into each of them for a few seconds.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from edgepeft.common.errors import EdgepeftError
from edgepeft.common.resources import cache_folder
from edgepeft.device import cgroups, machine, placement
from edgepeft.device.cgroups import ROOT
from edgepeft.device.limited_process import BACKENDS, LimitedProcess, Prepare
from edgepeft.device.machine import cpu_model, isa_flags, memory_bytes, usable_cores
from edgepeft.device.placement import Limits, Placement, Unavailable
from edgepeft.device.profiles import profile_of_board
from edgepeft.device.sensors import Sensors

_GIB = 2**30
_MIN_MEMORY, _MIN_DISK = 1 * _GIB, 2 * _GIB  # a base-size backbone: 0.5 GB of weights, 0.8 GB packed
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_RAYON = ("RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS")
_TRIED = 64 << 20  # bytes of a limit that is only tried, without a process under it
MEMORY_TOLERANCE, SHARE_TOLERANCE = 0.01, 0.02
_MEMORY = 256 << 20
_SHARES, _SHARE_SECONDS = (0.25, 0.5), 5.0  # of the cores; 50 periods
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
class Finding:
    """The outcome of one check, and what to do about it."""

    check: str
    status: Literal["ok", "note", "warning", "bad"]
    found: str
    advice: str = ""


def findings(root: Path = ROOT) -> list[Finding]:
    """Every check, in the order of the list; a check that fails itself is a finding too."""
    everything: list[Finding] = []
    for check in _CHECKS:
        try:
            everything += check(root)
        except (OSError, ValueError, EdgepeftError, psutil.Error) as error:
            everything.append(Finding(check.__name__.strip("_"), "warning", f"could not be looked at: {error}"))
    return everything


def _processor(root: Path) -> Iterator[Finding]:
    proc = root / "proc"
    board, profile = machine.board_name(root), profile_of_board(root)
    flags = " ".join(isa_flags(proc)) or "no flags known"
    yield Finding("processor", "ok", f"{cpu_model(proc)} ({flags})")
    if board is not None:
        known = f"bench --profile {profile.name} measures here" if profile else "no shipped profile is its own"
        advice = "" if profile else "edgepeft profiles new NAME --measure writes one."
        yield Finding("board", "ok", f"{board}; {known}", advice)
    for cost in machine.missing_arithmetic(None, weights="int8", fp16=True, proc=proc):
        yield Finding("arithmetic", "note", cost)


def _wheels(root: Path) -> Iterator[Finding]:
    proc, installed = root / "proc", machine.versions()
    flags = isa_flags(proc)
    missing = {wheel.needs for wheel in machine.KNOWN_BAD} - set(flags) if "asimd" in flags else set()
    bad = machine.bad_wheels(installed, missing)
    yield from (Finding("wheels", "bad", wheel.sentence(cpu_model(proc))) for wheel in bad)
    if not bad:
        packages = ", ".join(f"{name} {version}" for name, version in installed.items())
        yield Finding("wheels", "ok", f"{packages}: none is known to die on this processor")


def _control_groups(root: Path) -> Iterator[Finding]:
    """Which ways of limiting work, tried with a small limit and no process under it."""
    ways: dict[str, Callable[[Limits, None, Path], Placement]] = {
        "cgroup v2": placement.prepare_v2,
        "cgroup v1": placement.prepare_v1,
        "systemd scope": placement.prepare_scope,
    }
    refused = []
    for name, prepare in ways.items():
        for quota in (0.5, None):
            try:
                prepare(Limits(memory_bytes=_TRIED, cpu_quota=quota), None, root / "proc").remove()
            except Unavailable as reason:
                refused.append(str(reason) if quota is None else "")
                continue
            if quota is None:
                state, advice = "memory can be limited, a CPU quota cannot", "bench --mode calibrated needs a quota."
                yield Finding("control groups", "warning", f"{name}: {state}", advice)
            else:
                yield Finding("control groups", "ok", f"{name}: memory, cores and CPU quota can be limited")
            return
    text = f"none can be used: {'; '.join(filter(None, refused))}. Limits fall back to affinity and address space"
    advice = "Run as root, in a systemd session, or in a container with --cgroupns=private and writable cgroups."
    yield Finding("control groups", "warning", text, advice)


def _limits_in_force(root: Path) -> Iterator[Finding]:
    """Tell what holds this process already: every profile's limits lie within these."""
    cores, quota = len(machine.affinity()), machine.cpu_quota(root / "proc")
    memory, allowed = psutil.virtual_memory().total, memory_bytes(root / "proc")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    held = []
    if cores < (os.cpu_count() or cores):
        held.append(f"{cores} of {os.cpu_count()} processors by affinity")
    if quota is not None:
        held.append(f"{quota:g} cores' time by quota")
    if allowed < memory:
        held.append(f"{allowed:,} of {memory:,} bytes of memory by control group")
    if soft != resource.RLIM_INFINITY:
        held.append(f"{soft:,} bytes of address space")
    text = "; ".join(held) or f"none: {cores} cores, {memory:,} bytes of memory"
    advice = "A profile can only be below these." if held else ""
    yield Finding("limits in force", "note" if held else "ok", text, advice)


def _threads(root: Path) -> Iterator[Finding]:
    cores = usable_cores(root / "proc")
    for name in _THREADS:
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value) > cores:
            advice = f"export {name}={cores}, or unset it: threads beyond the cores wait for each other."
            yield Finding("threads", "warning", f"{name}={value}, {cores} cores can be kept busy", advice)
    rayon = next((os.environ[name] for name in _RAYON if os.environ.get(name)), None)
    off = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("false", "0", "off", "no", "n", "f")
    if off:
        text = "the tokenizers library tokenizes on the calling thread (TOKENIZERS_PARALLELISM=false)"
    else:
        own = rayon or f"{os.cpu_count()}, one a processor"
        text = f"the tokenizers library starts threads of its own for batches ({own}), beside ONNX Runtime's {cores}"
    advice = "" if off else "export TOKENIZERS_PARALLELISM=false where texts are short, or RAYON_NUM_THREADS=1."
    yield Finding("threads", "ok" if off else "note", text, advice)


def _cache(root: Path) -> Iterator[Finding]:
    folder = cache_folder()
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(parent, os.W_OK):
        yield Finding("cache", "ok", f"{folder}, {used:,} bytes")
    else:
        advice = "export EDGEPEFT_CACHE=FOLDER, or give --no-cache: every session then copies the weights."
        yield Finding("cache", "warning", f"{folder} cannot be written", advice)


def _memory_and_disk(root: Path) -> Iterator[Finding]:
    free = min(psutil.virtual_memory().available, memory_bytes(root / "proc"))
    advice = "" if free >= _MIN_MEMORY else "A base-size model needs about 1 GiB; take MiniLM, or --weights int8."
    yield Finding("memory", "ok" if not advice else "warning", f"{free:,} bytes are free", advice)
    swap = psutil.swap_memory()
    if swap.total and swap.used > swap.total // 2:
        yield Finding("memory", "warning", f"{swap.used:,} of {swap.total:,} bytes of swap are in use", "")
    folder = next(path for path in (cache_folder(), *cache_folder().parents) if path.exists())
    disk = shutil.disk_usage(folder).free
    advice = "" if disk >= _MIN_DISK else "Weights packed for this processor need 1.7 times the model's size there."
    yield Finding("disk", "ok" if not advice else "warning", f"{disk:,} bytes are free at {folder}", advice)


def _condition(root: Path) -> Iterator[Finding]:
    now = Sensors(root).read()
    if not now.known:
        yield Finding("condition", "note", "neither temperature, clock nor throttling can be read here")
        return
    known = ((now.temperature_c, "C"), (now.frequency_mhz, "MHz"))
    readings = [f"{value:.0f} {unit}" for value, unit in known if value is not None]
    if now.throttled:
        advice = "Cool the board, or give it a better power supply: it is slower than its profile."
        text = f"{', '.join(readings)}; throttles now: {', '.join(now.throttled)}"
        yield Finding("condition", "warning", text, advice)
    else:
        yield Finding("condition", "ok", ", ".join([*readings, *["not throttled"] * (now.throttled is not None)]))
    governor = cgroups.read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor == "powersave":
        advice = "sudo cpupower frequency-set -g performance, for figures that repeat."
        yield Finding("condition", "note", f"the clock's governor is {governor}", advice)


def _leftovers(root: Path) -> Iterator[Finding]:
    if left := [str(path) for path in cgroups.leftovers(root / "proc")]:
        text = f"groups of runs that were killed: {', '.join(left)}"
        yield Finding("leftovers", "note", text, "The next run removes them.")


_CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _processor,
    _wheels,
    _control_groups,
    _limits_in_force,
    _threads,
    _cache,
    _memory_and_disk,
    _condition,
    _leftovers,
)


@dataclass(frozen=True)
class TrialResult:
    """One limit as it was asked for and as it was seen to hold."""

    what: str
    backend: str
    asked: float
    seen: float
    unit: str
    error: float | None  # relative; None for a count
    good: bool | None  # None where the host was too busy to tell: what gets less than its quota was not stopped by it


def try_limits(*, backends: Sequence[Prepare] = BACKENDS) -> list[TrialResult]:
    """Memory, cores and CPU shares, each in a program of its own."""
    cores = usable_cores()
    results = [_memory(backends)]
    results += [_cores(number, backends) for number in sorted({1, cores})]
    results += [_share(share * cores, backends) for share in _SHARES]
    return results


def _memory(backends: Sequence[Prepare]) -> TrialResult:
    """A program takes more until it is killed; the group's own peak against the limit."""
    program, limits = [sys.executable, "-c", _GROW], Limits(cores=1, memory_bytes=_MEMORY)
    with LimitedProcess(program, limits, stderr=subprocess.DEVNULL, backends=backends) as process:
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
    """How many different processors busy programs were ever seen on."""
    with _spinning(number + 1, Limits(cores=number), backends) as (process, pids):
        seen: set[int] = set()
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            seen |= {psutil.Process(pid).cpu_num() for pid in pids}
    held, n = process.in_force, len(seen)
    return TrialResult("cores in use", held.backend, held.cores, n, "cores", None, n == held.cores)


def _share(quota: float, backends: Sequence[Prepare]) -> TrialResult:
    """Processor time of spinning programs in a multiple of the quota's period, read from outside."""
    cores = usable_cores()
    with _spinning(cores, Limits(cores=cores, cpu_quota=quota), backends) as (process, pids):
        time.sleep(_SETTLE_SECONDS)
        before, began, counted = _used(pids), time.monotonic(), process.throttled()
        time.sleep(_SHARE_SECONDS)
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

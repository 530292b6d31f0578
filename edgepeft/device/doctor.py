"""What may go wrong on this machine, before it does: the findings of ``edgepeft doctor``. Nothing is changed."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from edgepeft.common.errors import EdgepeftError
from edgepeft.common.resources import cache_folder
from edgepeft.device import arithmetic
from edgepeft.device.host import groups
from edgepeft.device.host.machine import (
    KNOWN_BAD,
    affinity,
    bad_wheels,
    board_name,
    cpu_model,
    cpu_quota,
    isa_flags,
    memory_bytes,
    usable_cores,
    versions,
)
from edgepeft.device.host.sensors import ROOT, Sensors
from edgepeft.device.limits import cgroups, systemd_scope
from edgepeft.device.limits.placement import Limits, Placement, Unavailable
from edgepeft.device.profiles import profile_of_board

__all__ = ["Finding", "Severity", "findings"]

Severity = Literal["ok", "note", "warning", "bad"]
_GIB = 2**30
_LEAST_MEMORY, _LEAST_DISK = 1 * _GIB, 2 * _GIB  # a base-size backbone: 0.5 GB of weights, 0.8 GB packed
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_RAYON = ("RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS")
_TRIED = 64 << 20  # bytes of a limit that is only tried, without a process under it


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, and what to do about it."""

    check: str
    status: Severity
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
    board, profile = board_name(root), profile_of_board(root)
    flags = " ".join(isa_flags(proc)) or "no flags known"
    yield Finding("processor", "ok", f"{cpu_model(proc)} ({flags})")
    if board is not None:
        known = f"bench --profile {profile.name} measures here" if profile else "no shipped profile is its own"
        advice = "" if profile else "edgepeft profiles new NAME --measure writes one."
        yield Finding("board", "ok", f"{board}; {known}", advice)
    for cost in arithmetic.missing_arithmetic(arithmetic.of_host(proc), int8=True, fp16=True):
        yield Finding("arithmetic", "note", cost)


def _wheels(root: Path) -> Iterator[Finding]:
    proc, installed = root / "proc", versions()
    flags = isa_flags(proc)
    missing = {wheel.needs for wheel in KNOWN_BAD} - set(flags) if "asimd" in flags else set()
    bad = bad_wheels(installed, missing)
    for wheel in bad:
        yield Finding("wheels", "bad", wheel.sentence(cpu_model(proc)))
    if not bad:
        packages = ", ".join(f"{name} {version}" for name, version in installed.items())
        yield Finding("wheels", "ok", f"{packages}: none is known to die on this processor")


def _control_groups(root: Path) -> Iterator[Finding]:
    """Which ways of limiting work, tried with a small limit and no process under it."""
    ways: dict[str, Callable[[Limits, None], Placement]] = {
        "cgroup v2": lambda limits, cpus: cgroups.prepare_v2(limits, cpus, root / "proc"),
        "cgroup v1": lambda limits, cpus: cgroups.prepare_v1(limits, cpus, root / "proc"),
        "systemd scope": systemd_scope.prepare,
    }
    refused = []
    for name, prepare in ways.items():
        for quota in (0.5, None):
            try:
                prepare(Limits(memory_bytes=_TRIED, cpu_quota=quota), None).remove()
            except Unavailable as reason:
                refused.append(str(reason) if quota is None else "")
                continue
            if quota is None:
                state, advice = "memory can be limited, a CPU quota cannot", "bench --mode calibrated needs a quota."
                yield Finding("control groups", "warning", f"{name}: {state}", advice)
            else:
                yield Finding("control groups", "ok", f"{name}: memory, cores and CPU quota can be limited")
            return
    yield Finding(
        "control groups",
        "warning",
        f"none can be used: {'; '.join(filter(None, refused))}. Limits fall back to affinity and address space",
        "Run as root, in a systemd session, or in a container with --cgroupns=private and writable cgroups.",
    )


def _limits_in_force(root: Path) -> Iterator[Finding]:
    """What holds this process already: every profile's limits lie within these."""
    cores, quota, machine = len(affinity()), cpu_quota(root / "proc"), psutil.virtual_memory().total
    allowed = memory_bytes(root / "proc")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    held = []
    if cores < (os.cpu_count() or cores):
        held.append(f"{cores} of {os.cpu_count()} processors by affinity")
    if quota is not None:
        held.append(f"{quota:g} cores' time by quota")
    if allowed < machine:
        held.append(f"{allowed:,} of {machine:,} bytes of memory by control group")
    if soft != resource.RLIM_INFINITY:
        held.append(f"{soft:,} bytes of address space")
    text = "; ".join(held) or f"none: {cores} cores, {machine:,} bytes of memory"
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
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(parent, os.W_OK):
        yield Finding("cache", "ok", f"{folder}, {used:,} bytes")
    else:
        advice = "export EDGEPEFT_CACHE=FOLDER, or give --no-cache: every session then copies the weights."
        yield Finding("cache", "warning", f"{folder} cannot be written", advice)


def _memory_and_disk(root: Path) -> Iterator[Finding]:
    memory = psutil.virtual_memory().available
    allowed = memory_bytes(root / "proc")
    free = min(memory, allowed)
    advice = "" if free >= _LEAST_MEMORY else "A base-size model needs about 1 GiB; take MiniLM, or --weights int8."
    yield Finding("memory", "ok" if not advice else "warning", f"{free:,} bytes are free", advice)
    swap = psutil.swap_memory()
    if swap.total and swap.used > swap.total // 2:
        yield Finding("memory", "warning", f"{swap.used:,} of {swap.total:,} bytes of swap are in use", "")
    folder = next(path for path in (cache_folder(), *cache_folder().parents) if path.exists())
    disk = shutil.disk_usage(folder).free
    advice = "" if disk >= _LEAST_DISK else "Weights packed for this processor need 1.7 times the model's size there."
    yield Finding("disk", "ok" if not advice else "warning", f"{disk:,} bytes are free at {folder}", advice)


def _condition(root: Path) -> Iterator[Finding]:
    now = Sensors(root).read()
    if not now.known:
        yield Finding("condition", "note", "neither temperature, clock nor throttling can be read here")
        return
    readings = []
    if now.temperature_c is not None:
        readings.append(f"{now.temperature_c:.0f} C")
    if now.frequency_mhz is not None:
        readings.append(f"{now.frequency_mhz:.0f} MHz")
    if now.throttled:
        advice = "Cool the board, or give it a better power supply: it is slower than its profile."
        yield Finding(
            "condition", "warning", f"{', '.join(readings)}; throttles now: {', '.join(now.throttled)}", advice
        )
    else:
        yield Finding(
            "condition", "ok", ", ".join([*readings, "not throttled" if now.throttled is not None else ""]).strip(", ")
        )
    governor = groups.read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor == "powersave":
        advice = "sudo cpupower frequency-set -g performance, for figures that repeat."
        yield Finding("condition", "note", f"the clock's governor is {governor}", advice)


def _leftovers(root: Path) -> Iterator[Finding]:
    left = [str(path) for path in groups.leftovers(root / "proc")]
    if left:
        yield Finding(
            "leftovers", "note", f"groups of runs that were killed: {', '.join(left)}", "The next run removes them."
        )


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

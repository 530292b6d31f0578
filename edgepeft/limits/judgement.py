"""Judges limits: from the requested and the read-back ones to what a result may claim."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import psutil

from edgepeft.host.cores import affinity, cpu_quota
from edgepeft.limits.placement import Emulation, InForce, LauncherReport, Limits, Placement

__all__ = ["judge"]


_QUOTA_STEP = 0.0006  # systemd rounds to a tenth of a per cent of a core


def judge(limits: Limits, placement: Placement, report: LauncherReport, refused: Sequence[str] = ()) -> InForce:
    """What is in force on a child that entered ``placement``; ``refused``: backends that did not work."""
    notes = [*placement.notes]
    grades = []
    cores = len(report.cpus)
    memory = placement.memory_in_force(report)
    if limits.cores is not None:
        cores = _cores(limits.cores, cores, notes)
        grades.append(cores == limits.cores)
    if limits.memory_bytes is not None:
        memory, exact = _memory(limits.memory_bytes, memory, notes)
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
    fewer = limits.cores is not None and len(report.cpus) < len(affinity())
    less = limits.memory_bytes is not None and placement.memory_in_force(report) is not None
    anything = any(grades) or fewer or less
    emulation: Emulation = "full" if grades and all(grades) else "partial" if anything else "none"
    return InForce(placement.backend, cores, memory, emulation, tuple(notes), quota)


def _cores(asked: int, inside: int, notes: list[str]) -> int:
    """Cores the child can keep busy: those it may run on, less what a quota around us takes."""
    around = cpu_quota()
    if around is not None and around < inside:
        notes.append(f"a control group around this process gives {around:g} cores' time")
        inside = max(1, int(around))
    if inside < asked:
        notes.append(f"the host has {inside} usable cores, the profile {asked}: clamped to {inside}")
    elif inside > asked:
        notes.append(f"{asked} cores were asked for, {inside} are in force")
    return inside


def _memory(asked: int, in_force: int | None, notes: list[str]) -> tuple[int | None, bool]:
    """Bytes in force, and whether they are those asked for (limits are kept in whole pages)."""
    host = psutil.virtual_memory().total
    if host < asked:
        notes.append(f"the host has {host} bytes of memory, the profile {asked}: it ends earlier than the device")
        in_force = host if in_force is None else min(in_force, host)
        return in_force, False
    if in_force is None:
        notes.append("memory is not limited")
        return None, False
    if abs(in_force - asked) >= mmap.PAGESIZE:
        notes.append(f"{asked} bytes of memory were asked for, {in_force} are in force")
        return in_force, False
    return in_force, True

"""Limits without privileges: processor affinity and RLIMIT_AS (sched_setaffinity(2), setrlimit(2)).

RLIMIT_AS counts address space, which is more than memory in use (mapped files, reserved arenas), so
this emulation of memory is stricter than a device: it is reported as partial.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from edgepeft.device.host.groups import PROC
from edgepeft.device.limits.placement import Limits, Placement

__all__ = ["prepare"]


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = PROC) -> Placement:
    """Affinity and address space for the launcher to set; this always works, as far as the system goes."""
    space = limits.memory_bytes
    placement = Placement("affinity and rlimit", cpus, address_space_bytes=space, memory_is_strict=False)
    if space is not None:
        placement.notes.append("memory is limited as address space (RLIMIT_AS), stricter than a device's memory")
    if sys.platform != "linux":
        placement.notes.append(f"{sys.platform} has no processor affinity: the cores are not limited")
    return placement

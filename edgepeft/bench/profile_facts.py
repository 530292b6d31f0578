"""What results say of the profile: what was asked, what the kernel says is in force, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgepeft.profiles.limits import InForce, Limits
from edgepeft.profiles.schema import Profile

__all__ = ["profile_facts"]

_NO_SPEED = "cores and memory are limited, their speed is the host's: this is no latency of the device"


def profile_facts(
    profile: Profile, limits: Limits, in_force: InForce | None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The document's ``profile``; ``in_force`` is None where no worker got as far as to be limited."""
    kept: dict[str, Any] | None = None
    if in_force:
        kept = {
            "backend": in_force.backend,
            "cores": in_force.cores,
            "memory_bytes": in_force.memory_bytes,
            "cpu_quota": in_force.cpu_quota,
        }
    return {
        "name": profile.name,
        "title": profile.title,
        "limits": {"requested": asdict(limits), "in_force": kept},
        "emulation": in_force.emulation if in_force else "none",
        "notes": [*(in_force.notes if in_force else ()), _NO_SPEED, *notes],
    }

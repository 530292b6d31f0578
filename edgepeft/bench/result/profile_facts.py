"""What results say of the profile: what was asked, what the kernel says is in force, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgepeft.bench.planning.subject import BenchSubject
from edgepeft.host.machine import versions
from edgepeft.host.wheels import BadWheel, bad_wheels
from edgepeft.limits.limited_process import InForce, Limits
from edgepeft.prediction import arithmetic
from edgepeft.profiles.schema import Profile

__all__ = ["arithmetic_notes", "profile_facts"]


def arithmetic_notes(profile: Profile, subject: BenchSubject) -> list[str]:
    """What the bundle's kinds of weights cost on the profile's processor, and wheels of this host that die there."""
    manifest = subject.bundle.manifest
    int8 = manifest.backbone.weights_dtype == "int8"
    fp16 = any(manifest.tasks[task.name].weights_dtype == "fp16" for task in subject.model.tasks)
    costs = arithmetic.missing_arithmetic(arithmetic.of_profile(profile), int8=int8, fp16=fp16)
    return [*costs, *(f"not to be used on the device: {wheel.sentence(profile.name)}" for wheel in _bad(profile))]


def _bad(profile: Profile) -> list[BadWheel]:
    return bad_wheels(versions(), profile.isa.absent)


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
        "notes": [*(in_force.notes if in_force else ()), *notes],
    }

"""Under which conditions a result was measured, and in what two results differ so that their times mean nothing."""

from __future__ import annotations

from dataclasses import dataclass

from edgepeft.bench.result.parts import ProfileLimits
from edgepeft.bench.result.schema import BenchResult

__all__ = ["Difference", "differences"]

_OWN = "edgepeft"  # its version is what a comparison is about


@dataclass(frozen=True)
class Difference:
    """One fact that two results do not share, in words."""

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what} was {self.before} and is {self.now}"


def differences(base: BenchResult, new: BenchResult) -> list[Difference]:
    """Processor, instruction set, cores, limits, and the versions of every package but edgepeft itself."""
    before, now = _facts(base), _facts(new)
    facts = [Difference(name, before[name], now[name]) for name in before if before[name] != now[name]]
    before, now = base.host.versions, new.host.versions
    packages = sorted(name for name in {*before, *now} - {_OWN} if before.get(name) != now.get(name))
    return [*facts, *(Difference(f"{name}'s version", str(before.get(name)), str(now.get(name))) for name in packages)]


def _facts(result: BenchResult) -> dict[str, str]:
    """What must agree for throughputs to be comparable."""
    host, profile = result.host, result.profile
    limits = _without_quotas(profile.limits) if result.mode == "calibrated" else profile.limits
    return {
        "host cpu": str(host.cpu),
        "host isa": str(host.isa and list(host.isa)),
        "host cores": str(host.cores and host.cores.to_json()),
        "profile name": str(profile.name),
        "profile limits": str(limits.to_json()),
    }


def _without_quotas(limits: ProfileLimits) -> ProfileLimits:
    """Calibration finds another quota each time, so that the host's speed drops out."""
    without = {"cpu_quota": None}
    return ProfileLimits(
        requested=limits.requested and limits.requested.model_copy(update=without),
        in_force=limits.in_force and limits.in_force.model_copy(update=without),
    )

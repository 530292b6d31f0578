"""Under which conditions a result was measured, and in what two results differ so that their times mean nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgepeft.bench.result.result_file import ResultFile

__all__ = ["Difference", "differences"]

# Facts of which a difference makes throughputs incomparable: (where, key).
_MUST_AGREE = (
    ("host", "cpu"),
    ("host", "isa"),
    ("host", "cores"),
    ("profile", "name"),
    ("profile", "limits"),
)
_OWN = "edgepeft"  # its version is what a comparison is about


@dataclass(frozen=True)
class Difference:
    """One fact that two results do not share."""

    what: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.what} was {self.before} and is {self.now}"


def differences(base: ResultFile, new: ResultFile) -> list[Difference]:
    """Processor, instruction set, cores, limits, and the versions of every package but edgepeft itself."""
    found = [
        Difference(f"{section} {key}", before, now)
        for section, key in _MUST_AGREE
        if (before := _fact(base.document, section, key)) != (now := _fact(new.document, section, key))
    ]
    return [*found, *_versions(base.document, new.document)]


def _fact(document: Mapping[str, Any], section: str, key: str) -> Any:
    found = document.get(section)
    fact = found.get(key) if isinstance(found, Mapping) else None
    if key == "limits" and document.get("mode") == "calibrated":
        return _without_quotas(fact)  # found anew each time, so that the host's speed drops out
    return fact


def _without_quotas(limits: Any) -> Any:
    if not isinstance(limits, Mapping):
        return limits
    return {name: _without_quotas(value) for name, value in limits.items() if name != "cpu_quota"}


def _versions(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    before, now = (_fact(document, "host", "versions") for document in (base, new))
    before, now = (found if isinstance(found, Mapping) else {} for found in (before, now))
    for package in sorted({*before, *now} - {_OWN}, key=str):
        if before.get(package) != now.get(package):
            yield Difference(f"{package}'s version", before.get(package), now.get(package))

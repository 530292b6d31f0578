"""How much memory a run may take, and who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgepeft.common.errors import UsageError
from edgepeft.device.host.machine import memory_bytes
from edgepeft.device.profiles import load_profile

__all__ = ["MemoryBudget", "allowed_memory", "amount_of"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class MemoryBudget:
    """So many bytes, and who says so."""

    n_bytes: int
    by: str


def allowed_memory(profile: str | None, asked: str | None) -> MemoryBudget:
    """The least of what the profile has, what was asked for, and what host and control groups give.

    Raises:
        UsageError: no such profile, or no amount of memory.
    """
    budgets = [MemoryBudget(memory_bytes(), "this host or its control group")]
    if profile is not None:
        budgets.append(MemoryBudget(load_profile(profile).memory_bytes, f"profile {profile}"))
    if asked is not None:
        budgets.append(MemoryBudget(amount_of(asked), "--memory"))
    return min(budgets, key=lambda each: each.n_bytes)


def amount_of(text: str, option: str = "--memory") -> int:
    """``"1.5GiB"`` in bytes.

    Raises:
        UsageError: it is no amount of memory.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is no amount of memory; give one such as 800MB or 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])

"""Wheels that are known to die on a processor, refused by name: a SIGILL in a compiled library comes without a message.

Tried on a Cortex-A72 (no LSE atomics, ``atomics`` in the kernel's names): onnxruntime 1.21.0 and torch 2.10.0 execute
such instructions without asking whether they are there.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepeft.common.errors import EdgepeftError
from edgepeft.device.host import groups
from edgepeft.device.host.machine import cpu_model, isa_flags, versions

__all__ = ["KNOWN_BAD", "BadWheel", "bad_wheels", "refuse_bad_wheels"]


@dataclass(frozen=True)
class BadWheel:
    """One version of a package, the instructions it takes for granted, and what to install instead."""

    package: str
    version: str
    needs: str
    instead: str

    def sentence(self, processor: str) -> str:
        """The message: what happens there, and what to do."""
        return (
            f"{self.package} {self.version} dies with an illegal instruction on {processor}, which is Armv8.0 "
            f"(no {self.needs}). Install another: pip install '{self.instead}'."
        )


KNOWN_BAD = (
    BadWheel("onnxruntime", "1.21.0", "atomics", "onnxruntime>=1.24.4,<1.28"),
    BadWheel("torch", "2.10.0", "atomics", "torch<=2.9.1"),
)


def bad_wheels(installed: Mapping[str, str], missing: Collection[str]) -> list[BadWheel]:
    """Those of ``installed`` (package -> version) that need one of the ``missing`` instructions."""
    return [
        wheel
        for wheel in KNOWN_BAD
        # 2.10.0+cpu is 2.10.0
        if installed.get(wheel.package, "").partition("+")[0] == wheel.version and wheel.needs in missing
    ]


def refuse_bad_wheels(*packages: str, proc: Path = groups.PROC) -> None:
    """Refuse packages that would kill this process; call it before they are imported.

    Raises:
        EdgepeftError: one of them would kill this process.
    """
    flags = set(isa_flags(proc))
    if platform.machine() != "aarch64" and "asimd" not in flags:  # no Arm board, nor one that is imitated
        return
    missing = {wheel.needs for wheel in KNOWN_BAD} - flags
    for wheel in bad_wheels(versions(), missing):
        if wheel.package in packages:
            raise EdgepeftError(wheel.sentence(cpu_model(proc)))

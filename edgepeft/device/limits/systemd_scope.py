"""Limits by a transient systemd scope (systemd-run(1), systemd.resource-control(5)).

For users whose own group is not theirs to divide: ``systemd-run --scope`` starts the launcher in a
group of its own and removes that group when its last process ends. So that the counters can be
read after the work ended, a keeper stays in it until the parent lets go.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepeft.device.host import groups
from edgepeft.device.limits.placement import LauncherReport, Limits, Placement, Unavailable

__all__ = ["BOOTED", "Scope", "prepare"]

BOOTED = Path("/run/systemd/system")  # sd_booted(3): systemd is the init if this folder is there
_PROBE_SECONDS = 20.0


@dataclass
class Scope(Placement):
    """One scope; which group that is, is known once the child is inside."""

    backend: str = "systemd scope"
    proc: Path = groups.PROC
    unit: str = ""

    def entered(self, report: LauncherReport) -> None:
        """Find the scope's memory group, version 2's or 1's."""
        own = groups.groups_of(report.pid, self.proc)
        self.files = groups.V1 if "memory" in own else groups.V2
        folder = own.get("memory", own.get(groups.UNIFIED))
        if folder is None or self.unit not in folder.name:
            raise Unavailable("systemd-run started the child outside its scope")
        cpu = own.get("cpu") if self.files is groups.V1 else folder
        self.folders = {"memory": folder, **({"cpu": cpu} if cpu is not None else {})}

    def change_quota(self, cores: float) -> None:
        """Set it through systemd, which may undo what others set."""
        command = [shutil.which("systemctl") or "systemctl", "set-property", "--runtime"]
        user = [] if os.geteuid() == 0 else ["--user"]
        _probe([*command, *user, f"{self.unit}.scope", f"CPUQuota={_percent(cores)}"])

    def remove(self) -> None:
        """Nothing: systemd removes a scope with its last process."""


def prepare(limits: Limits, cpus: Sequence[int] | None, proc: Path = groups.PROC, booted: Path = BOOTED) -> Scope:
    """A scope with ``limits``, tried once with a program that does nothing."""
    program = shutil.which("systemd-run")
    if program is None or not booted.is_dir():
        raise Unavailable("systemd does not run here")
    unit = f"edgepeft-{os.getpid()}-{secrets.token_hex(4)}"
    # Delegated, a scope survives the death of one of its processes for memory (OOMPolicy=continue).
    wanted = ["Delegate=yes"]
    if limits.memory_bytes is not None:
        wanted += [f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0"]
    if cpus is not None:
        wanted.append(f"AllowedCPUs={','.join(map(str, cpus))}")
    if limits.cpu_quota is not None:
        wanted.append(f"CPUQuota={_percent(limits.cpu_quota)}")
    options = [part for property_ in wanted for part in ("-p", property_)]
    _probe([*_command(program, f"{unit}-probe"), *options, "--", "true"])
    return Scope(
        cpus=cpus,
        wrapper=[*_command(program, unit), *options, "--"],
        keeper=True,
        proc=proc,
        unit=unit,
    )


def _command(program: str, unit: str) -> list[str]:
    # --collect: a scope whose process was killed for memory must not stay as a failed unit.
    command = [program, "--scope", "--quiet", "--collect", "--no-ask-password", f"--unit={unit}"]
    return command if os.geteuid() == 0 else [*command, "--user"]


def _percent(cores: float) -> str:
    """Of one core, to the tenth, which is systemd's precision (systemd.resource-control(5))."""
    return f"{100 * cores:.1f}%".replace(".0%", "%")


def _probe(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} does not answer ({type(error).__name__})") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"{Path(command[0]).name} refused: {lines[0]}")

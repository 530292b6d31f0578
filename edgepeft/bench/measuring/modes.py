"""What a throughput under a profile stands for: limits, calibration, or the device itself.

``limits`` holds cores and memory, as SPARTAN did: the speed is the host's. ``calibrated`` adds the CPU quota at which
the host runs the profile's reference as the device does. On the profile's own board both become ``measured``: nothing
is emulated there. ``predicted`` runs nothing at all and has a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgepeft.bench.measuring.calibrate import (
    CALIBRATION_TOLERANCE,
    LEAST_SHARE,
    Calibrated,
    StartAt,
    calibrate,
)
from edgepeft.bench.measuring.process import WorkerProcess
from edgepeft.bench.planning.job import Job
from edgepeft.common.errors import EdgepeftError
from edgepeft.device.host.cores import thread_count
from edgepeft.device.host.machine import board_name, cpu_model
from edgepeft.device.host.sensors import ROOT
from edgepeft.device.limits.placement import Limits
from edgepeft.device.profiles.loader import is_this_board
from edgepeft.device.profiles.schema import Profile

__all__ = ["Setting", "setting_of"]

_NO_SPEED = "cores and memory are limited, their speed is the host's: this is no latency of the device"


@dataclass(frozen=True)
class Setting:
    """What is put around the workers, and what their times then stand for."""

    mode: Literal["limits", "calibrated", "measured"]
    profile: Profile
    limits: Limits
    threads: int
    notes: tuple[str, ...]
    calibrated: Calibrated | None = None

    @property
    def percentiles(self) -> bool:
        """Whether the latency of a single step means anything."""
        return self.calibrated is None or self.calibrated.percentiles

    @property
    def times_are_the_devices(self) -> bool:
        """Whether seconds may be multiplied with the device's power."""
        return self.mode != "limits"

    @property
    def probe(self) -> Job | None:
        """The reference, to be run in the same rounds, so that the calibration is seen to hold."""
        reference = self.profile.reference
        if self.calibrated is None or reference is None:
            return None
        return Job("reference", self.threads, settings=reference.shapes)

    def worker(self, label: str, job: Job) -> WorkerProcess:
        """A worker under these limits; a quota holds once it is loaded and warm."""
        return WorkerProcess(label, job, self.limits, throttled=False)


def setting_of(
    mode: str, profile: Profile, *, start: StartAt | None = None, root: Path = ROOT, progress: Any = lambda *_: None
) -> Setting:
    """Set up one of the modes that run something.

    Raises:
        UsageError, EdgepeftError: as ``calibrate``.
    """
    if is_this_board(profile, root):
        name = board_name(root) or cpu_model(root / "proc")
        notes = [f"measured on the device itself ({name}): nothing is emulated"]
        threads = thread_count()
        if threads < profile.cores.value:
            notes.append(f"{threads} of its {profile.cores.value} cores can be used here")
        return Setting("measured", profile, Limits(), threads, tuple(notes))
    limits = profile.limits()
    threads = thread_count(limits.cores)
    if mode == "limits":
        return Setting("limits", profile, limits, threads, (_NO_SPEED,))
    calibrated = calibrate(profile, start or _start, cores=threads, progress=progress)
    if calibrated.quota < calibrated.cores:
        limits = replace(limits, cpu_quota=calibrated.quota)
    return Setting("calibrated", profile, limits, threads, _calibration_notes(profile, calibrated), calibrated)


@contextmanager
def _start(label: str, job: Job, quota: float) -> Iterator[WorkerProcess]:
    """Start a worker for calibration: its speed is measured, its memory is not limited."""
    with WorkerProcess(label, job, Limits(cores=job.threads, cpu_quota=quota), throttled=False) as worker:
        if worker.in_force.cpu_quota is None:
            why = "; ".join(worker.in_force.notes) or worker.in_force.backend
            raise EdgepeftError(
                f"no CPU quota can be set here, which calibration needs ({why}). `edgepeft doctor` says what is "
                "missing; --mode limits and --mode predicted need none."
            )
        worker.ready()
        worker.throttle()
        yield worker


def _calibration_notes(profile: Profile, calibrated: Calibrated) -> tuple[str, ...]:
    notes = [
        f"calibrated: under a quota of {calibrated.quota:.3f} cores ({calibrated.share:.1%} of {calibrated.cores}) "
        f"this host takes {calibrated.achieved_s:.3g} s for {calibrated.reference}, the device "
        f"{calibrated.target_s:.3g} s ({calibrated.error:+.1%} of its rate, {CALIBRATION_TOLERANCE:.0%} allowed); "
        f"without the quota {calibrated.host_s:.3g} s",
        *(f"not calibrated: {residual.sentence()}" for residual in calibrated.residuals),
    ]
    runtime = profile.reference.runtime if profile.reference is not None else ""
    if "onnx" not in runtime.lower():
        notes.append(f"uncalibrated for ONNX Runtime: the device's reference was measured with {runtime}")
    if not calibrated.percentiles:
        notes.append(f"under a quota below {LEAST_SHARE:.0%} a step mostly waits: throughput only, no percentiles")
    notes.append("PyTorch's rows and ratios to them are not to be believed under a quota: its threads wait in a loop")
    return tuple(notes)

"""What a throughput under a profile stands for: limits, calibration, or the device itself.

``limits`` holds cores and memory, as SPARTAN did: the speed is the host's. ``calibrated`` adds the CPU quota at which
the host runs the profile's reference as the device does. On the profile's own board both become ``measured``: nothing
is emulated there. ``predicted`` runs nothing at all and has a module of its own.

A quota scales all work alike, so one iteration of calibration with t the seconds of a pass is q <- q t / t_device,
repeated until the mean of several passes is within the tolerance of the device's, twice in a row. What scales alike
stays unlike where host and device are: memory bandwidth and what one thread gets are measured afterwards and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, computed_field
from pydantic.dataclasses import dataclass as document

from edgepeft.bench.measuring.measure import WorkerProcess
from edgepeft.bench.planning.job import Job
from edgepeft.bench.workloads.probes import COPIED_BYTES
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.device.cgroups import ROOT, SMALLEST_QUOTA
from edgepeft.device.machine import board_name, cpu_model, thread_count
from edgepeft.device.placement import Limits
from edgepeft.device.profiles import Profile, is_this_board

_NO_SPEED = "cores and memory are limited, their speed is the host's: this is no latency of the device"
CALIBRATION_TOLERANCE = 0.05
MIN_SHARE = 0.2  # of the cores: under it a step is mostly waiting for the next period, and percentiles tell of that
_AIM = 0.035  # so that the second look, with its own noise, is still within the tolerance
_MAX_TRIALS = 15
_COPY = "copy_one_thread"
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # parts of a result, which is read again
StartAt = Callable[[str, Job, float], AbstractContextManager[WorkerProcess]]  # label, job, quota in cores


@dataclass(frozen=True)
class Setting:
    """The limits around the workers, and what their times stand for under these."""

    mode: Literal["limits", "calibrated", "measured"]
    profile: Profile
    limits: Limits
    threads: int
    notes: tuple[str, ...]
    calibrated: CalibrationRecord | None = None

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
    """Set up one of the modes that run something."""
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
    if calibrated.quota_cores < calibrated.cores:
        limits = replace(limits, cpu_quota=calibrated.quota_cores)
    return Setting("calibrated", profile, limits, threads, calibrated.notes(profile), calibrated)


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


@document(frozen=True, config=_STRICT)
class Trial:
    """Passes under one quota; each of ``seconds`` is a mean over a span of them."""

    quota_cores: float
    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Seconds of a pass."""
        return sum(self.seconds) / len(self.seconds)


@document(frozen=True, config=_STRICT)
class Residual:
    """A kind of work that calibration leaves wrong: its rate here, and on the device."""

    work: str
    unit: str
    here: float
    device: float
    source: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float:
        """Above 1, such work runs faster here than on the device."""
        return self.here / self.device

    def sentence(self) -> str:
        """The residual in words."""
        return f"{self.work}: {self.here:.3g} {self.unit} here, {self.device:.3g} on the device (x {self.ratio:.2f})"


@document(frozen=True, config=_STRICT)
class CalibrationRecord:
    """The quota at which this host runs the profile's reference as the device does; ``error`` is of the rate."""

    reference: str
    flops: int
    device_s: float
    host_s: float  # of a pass without a quota
    achieved_s: float  # of one under it, as the last trial has it
    error: float  # above 0 this host, so limited, is faster than the device
    tolerance: float
    quota_cores: float
    cores: int
    share: float  # of the cores
    percentiles: bool  # whether latencies of single steps mean anything
    trials: tuple[Trial, ...]
    residuals: tuple[Residual, ...]
    in_rounds_s: dict[str, tuple[float, ...]]  # how the reference ran in the rounds themselves, by workload
    in_rounds_error: dict[str, float | None]

    def notes(self, profile: Profile) -> tuple[str, ...]:
        """Sentences that a reader of the figures must know."""
        notes = [
            f"calibrated: under a quota of {self.quota_cores:.3f} cores ({self.share:.1%} of {self.cores}) this host "
            f"takes {self.achieved_s:.3g} s for {self.reference}, the device {self.device_s:.3g} s "
            f"({self.error:+.1%} of its rate, {CALIBRATION_TOLERANCE:.0%} allowed); without the quota "
            f"{self.host_s:.3g} s",
            *(f"not calibrated: {residual.sentence()}" for residual in self.residuals),
        ]
        runtime = profile.reference.runtime if profile.reference is not None else ""
        if "onnx" not in runtime.lower():
            notes.append(f"uncalibrated for ONNX Runtime: the device's reference was measured with {runtime}")
        if not self.percentiles:
            notes.append(f"under a quota below {MIN_SHARE:.0%} a step mostly waits: throughput only, no percentiles")
        notes.append(
            "PyTorch's rows and ratios to them are not to be believed under a quota: its threads wait in a loop"
        )
        return tuple(notes)


def calibrate(
    profile: Profile, start: StartAt, *, cores: int, progress: Callable[[str, int, int], None] = lambda *_: None
) -> CalibrationRecord:
    """Find the quota on ``cores`` cores."""
    reference, target = profile.reference, profile.reference_seconds
    if reference is None or target is None:
        raise UsageError(
            f"profile {profile.name} names no whole encoder that was measured on the device, so there is nothing to "
            "calibrate with. --mode limits and --mode predicted need none."
        )
    name = f"{reference.model}, {reference.runtime} {reference.precision}".strip()
    progress(f"calibrating: {name}", 0, _MAX_TRIALS)
    with start("the reference", Job("reference", cores, settings=reference.shapes), float(cores)) as worker:
        # The quota is less where a group around this process has less.
        trials = [_trial(worker, worker.change_quota(float(cores)), warm=1)]
        host = trials[0].mean
        if host > target * (1 + CALIBRATION_TOLERANCE):
            here, there = (f"{s:.3g} s ({reference.flops / s / 1e9:.3g} GFLOP/s)" for s in (host, target))
            raise EdgepeftError(
                f"this host runs the reference of {profile.name} in {here}, the device in {there}: it is slower and "
                "cannot stand in for it. If it is busy with something else, repeat when it is not; --mode predicted "
                "needs no host."
            )
        if abs(host / target - 1) > CALIBRATION_TOLERANCE:
            trials += _search(worker, profile, trials[0], progress)
    quota, achieved = trials[-1].quota_cores, trials[-1].mean
    return CalibrationRecord(
        reference=name,
        flops=reference.flops,
        device_s=target,
        host_s=host,
        achieved_s=achieved,
        error=target / achieved - 1,
        tolerance=CALIBRATION_TOLERANCE,
        quota_cores=quota,
        cores=cores,
        share=quota / cores,
        percentiles=quota / cores >= MIN_SHARE,
        trials=tuple(trials),
        residuals=tuple(_residuals(profile, start, quota)),
        in_rounds_s={},
        in_rounds_error={},
    )


def _search(
    worker: WorkerProcess, profile: Profile, free: Trial, progress: Callable[[str, int, int], None]
) -> list[Trial]:
    """Trials until two in a row, the second twice as long, are within the tolerance; ``free``: on all cores."""
    target, trials = float(profile.reference_seconds or 0.0), list[Trial]()
    quota = free.quota_cores * free.mean / target
    for number in range(_MAX_TRIALS):
        progress(f"calibrating: quota {quota:.3f} cores", number, _MAX_TRIALS)
        if quota < SMALLEST_QUOTA:
            raise EdgepeftError(
                f"to be as slow as {profile.name}, this host would need a quota of {quota:.2g} cores, the device's "
                f"{target:.3g} s a pass against {free.mean:.3g} s here; the kernel's shortest is {SMALLEST_QUOTA} "
                "(1 ms in each 100 ms). --mode predicted needs no quota."
            )
        in_force = worker.change_quota(quota)
        trials.append(_trial(worker, in_force))
        if abs(target / trials[-1].mean - 1) <= _AIM:
            trials.append(_trial(worker, in_force, times=2))
            if abs(target / trials[-1].mean - 1) <= CALIBRATION_TOLERANCE:
                return trials
        quota = min(free.quota_cores, in_force * trials[-1].mean / target)
    errors = ", ".join(f"{target / trial.mean - 1:+.1%}" for trial in trials[-5:])
    raise EdgepeftError(
        f"the calibration did not settle: of the device's rate, the last trials were off by {errors}. Is the host busy "
        "with something else? Repeat when it is not."
    )


def _trial(worker: WorkerProcess, quota: float, *, warm: int = 0, times: int = 1) -> Trial:
    # A step is itself the mean over many periods of the quota.
    seconds = [worker.step(0).seconds for _ in range(warm + times)]
    return Trial(quota, tuple(seconds[warm:]))


def _residuals(profile: Profile, start: StartAt, quota: float) -> Iterator[Residual]:
    """Memory copies, and the reference on one thread, which a quota gives as much as all."""
    if (device := profile.amount(_COPY, "GB/s")) is not None:
        with start("memory copies", Job("copy", 1), quota) as worker:
            rate = COPIED_BYTES / _trial(worker, quota, warm=1).mean / 1e9
        source = profile.figures[_COPY].source
        yield Residual("memory-bound work (copies on one thread)", "GB/s", rate, device, source)
    reference = profile.reference
    assert reference is not None  # the caller has looked
    alone = reference.model_copy(update={"threads": 1})
    row = next((row for row in profile.latencies if alone.is_of(row)), None)
    if reference.threads != 1 and row:
        with start("the reference on one thread", Job("reference", 1, settings=reference.shapes), quota) as worker:
            seconds = _trial(worker, quota, warm=1).mean
        rates = reference.flops / seconds / 1e9, reference.flops / row.value / 1e6
        yield Residual("work on one thread (the reference)", "GFLOP/s", *rates, row.source)


def rate_error(samples: Sequence[float], target: float) -> float | None:
    """Relative error of the rate in passes of the reference that ran in the rounds; None without any."""
    return target / (sum(samples) / len(samples)) - 1 if samples else None

"""The conditions of a result: host, profile with its limits, calibration, model, commit and time."""

import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import edgepeft
from edgepeft.bench.measuring.emulation import CalibrationRecord, Setting, rate_error
from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.planning.target import BenchSubject
from edgepeft.bench.result.parts import LimitsInForce, LimitsRequested, ProfileLimits, ProfileRecord
from edgepeft.bench.result.schema import BenchHost, ModelRecord, TaskRecord
from edgepeft.bench.workloads.probes import GEMM_FLOPS
from edgepeft.device import machine
from edgepeft.device.machine import bad_wheels, host_facts, versions
from edgepeft.device.placement import InForce, Limits
from edgepeft.device.profiles import Profile

REPOSITORY = Path(edgepeft.__file__).resolve().parent.parent  # where this is a checkout
_GRADES = ("none", "partial", "full")


def host_of(measured: Sequence[Measured], board: str | None = None) -> BenchHost:
    """The host, with the rate of its matrix products (GFLOP/s, float32) between the samples, by engine."""
    rates: dict[str, Any] = {}
    for probe in ("gemm", "pytorch_gemm"):
        series = {one.unit.workload: getattr(one, probe).seconds for one in measured if getattr(one, probe).samples}
        own = {workload: tuple(GEMM_FLOPS / s / 1e9 for s in seconds) for workload, seconds in series.items()}
        everything = [rate for of_one in own.values() for rate in of_one]
        median = float(np.median(everything)) if everything else None
        rates |= {f"{probe}_gflops": median, f"{probe}_samples_gflops": own}
    return BenchHost(**host_facts(), **rates, board=board)


def in_force_of(measured: Sequence[Measured]) -> InForce | None:
    """Limits of the first worker, or of the first that lost some of them while it ran."""
    limits = [one.in_force for one in measured if one.in_force]
    return min(limits, key=lambda one: _GRADES.index(one.emulation), default=None)


def profile_of(profile: Profile, limits: Limits, in_force: InForce | None, notes: Sequence[str] = ()) -> ProfileRecord:
    """The profile; ``in_force`` is None where no worker got as far as to be limited."""
    kept = LimitsInForce.model_validate(in_force, from_attributes=True) if in_force else None
    requested = LimitsRequested.model_validate(limits, from_attributes=True)
    return ProfileRecord(
        name=profile.name,
        title=profile.title,
        limits=ProfileLimits(requested=requested, in_force=kept),
        emulation=in_force.emulation if in_force else "none",
        notes=(*(in_force.notes if in_force else ()), *notes),
    )


def arithmetic_notes(profile: Profile, subject: BenchSubject) -> list[str]:
    """Say what the bundle's weights cost on the profile's processor, and which wheels of this host die there."""
    manifest = subject.bundle.manifest
    fp16 = any(manifest.tasks[task.name].weights_dtype == "fp16" for task in subject.tasks)
    costs = machine.missing_arithmetic(profile, weights=manifest.backbone.weights_dtype, fp16=fp16)
    wheels = bad_wheels(versions(), profile.isa.absent)
    return [*costs, *(f"not to be used on the device: {wheel.sentence(profile.name)}" for wheel in wheels)]


def calibration_of(setting: Setting, measured: Sequence[Measured]) -> CalibrationRecord | None:
    """The calibration, with how the reference ran in the rounds themselves; None where the mode has none."""
    one = setting.calibrated
    if one is None:
        return None
    series = {each.unit.workload: tuple(each.reference.seconds) for each in measured}
    errors = {workload: rate_error(samples, one.device_s) for workload, samples in series.items()}
    return replace(one, in_rounds_s=series, in_rounds_error=errors)


def model_of(subject: BenchSubject) -> ModelRecord:
    """Its architecture; of a bundle, the tasks that were measured."""
    records = {}
    for task in () if subject.random_weights else subject.tasks:
        entry = subject.bundle.entry(task.name)
        metric, score = entry.metrics.get("metric"), entry.metrics.get("test")
        records[task.name] = TaskRecord(
            method=entry.method,
            trainable_parameters=entry.trainable_parameters,
            n_bytes=entry.n_bytes,
            metric=metric if isinstance(metric, str) else None,
            score=float(score) if isinstance(score, (int, float)) and math.isfinite(score) else None,
        )
    return ModelRecord(
        name=subject.name,
        random_weights=subject.random_weights,
        family=subject.architecture.family,
        model_type=subject.architecture.model_type,
        n_parameters=subject.architecture.n_parameters,
        tasks=records,
    )


def commit_under_test() -> str | None:
    """The commit that CI names, else HEAD of the checkout that edgepeft runs from (+: files differ), else None."""
    if named := os.environ.get("GITHUB_SHA") or os.environ.get("CI_COMMIT_SHA"):  # GitHub's and GitLab's
        return named
    if not (REPOSITORY / ".git").exists() or (head := git(REPOSITORY, "rev-parse", "HEAD")).returncode:
        return None
    differs = git(REPOSITORY, "diff", "--quiet", "HEAD").returncode
    return head.stdout.decode().strip() + ("+" if differs else "")


def git(place: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """What git says there; an exit code of 127 where there is no git."""
    try:
        return subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, check=False)
    except OSError:
        return subprocess.CompletedProcess(arguments, 127, b"", b"no git")

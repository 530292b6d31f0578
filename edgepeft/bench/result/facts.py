"""What a result says of its conditions: host, limits in force, calibration, model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgepeft.bench.measuring.calibrate import settled
from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.modes import Setting
from edgepeft.bench.planning.subject import BenchSubject
from edgepeft.bench.result.document import gemm_gflops
from edgepeft.host.machine import host_facts
from edgepeft.limits.limited_process import InForce
from edgepeft.runtime.manifest import TaskEntry

__all__ = ["calibration_of", "host_of", "in_force_of", "model_of"]

_GRADES = ("none", "partial", "full")


def host_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """The host, with the rate of its matrix products (GFLOP/s, float32) between the samples, by engine."""
    facts = host_facts()
    for engine, name in (("onnxruntime", "gemm"), ("pytorch", "pytorch_gemm")):
        rates = gemm_gflops(measured, engine)
        everything = [rate for workload in rates.values() for rate in workload]
        facts[f"{name}_gflops"] = float(np.median(everything)) if everything else None
        facts[f"{name}_samples_gflops"] = rates
    return facts


def in_force_of(measured: Sequence[Measured]) -> InForce | None:
    """Of the first worker, or of the first that lost some of its limits while it ran."""
    found = [one.in_force for one in measured if one.in_force]
    return min(found, key=lambda one: _GRADES.index(one.emulation), default=None)


def calibration_of(setting: Setting, measured: Sequence[Measured]) -> dict[str, Any]:
    """The document's part on calibration, with how the reference ran in the rounds themselves."""
    if setting.calibrated is None:
        return {}
    series = {one.unit.workload: [sample.seconds for sample in one.reference.samples] for one in measured}
    errors = {workload: settled(samples, setting.calibrated.target_s) for workload, samples in series.items()}
    return {"calibration": {**setting.calibrated.to_json(), "in_rounds_s": series, "in_rounds_error": errors}}


def model_of(subject: BenchSubject) -> dict[str, Any]:
    """Its architecture; of a bundle, the tasks that were measured."""
    return {
        "name": subject.name,
        "random_weights": subject.random_weights,
        "family": subject.architecture.family,
        "model_type": subject.architecture.model_type,
        "n_parameters": subject.architecture.n_parameters,
        "tasks": {} if subject.random_weights else _tasks(subject),
    }


def _tasks(subject: BenchSubject) -> dict[str, Any]:
    """What a bundle's manifest tells of the tasks that were measured: their weight and score."""
    return {task.name: _told(subject.bundle.entry(task.name)) for task in subject.model.tasks}


def _told(entry: TaskEntry) -> dict[str, Any]:
    metrics: Mapping[str, Any] = entry.metrics or {}
    return {
        "method": entry.method,
        "trainable_parameters": entry.trainable_parameters,
        "n_bytes": entry.n_bytes,
        "metric": metrics.get("metric"),
        "score": metrics.get("test"),
    }

"""Where a batch's time goes: by operator and by layer, each with its floor and the gap to it.

An operator's floor is what its work takes at the host's ceilings, measured in the same run: the larger of its
operations over the GEMM rate and its bytes over the rate of copying memory (a roofline; Williams, Waterman and
Patterson 2009).  A gap below 1 means that its data came from a cache, which is faster than memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgepeft.bench.analysis.operator_trace import Executed, read_trace
from edgepeft.bench.measuring.measure import Start
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.bench.result.schema import CeilingsRecord, OperatorRecord, ProfiledPass
from edgepeft.bench.workloads import copy, gemm
from edgepeft.common.errors import UsageError

__all__ = ["by_layer", "by_type", "profile_all", "profile_operators"]

_WARMUP, _RUNS, _PROBES = 2, 10, 5


def profile_all(units: Sequence[Unit], start: Start) -> tuple[ProfiledPass, ...]:
    """The result's ``operators``: the backbone and every task, as ONNX Runtime answers with them.

    Raises:
        UsageError: nothing of that kind was asked for.
        EdgepeftError: a worker failed.
    """
    own = (UnitRole.TASK, UnitRole.BACKBONE)
    jobs = [unit.job for unit in units if unit.job and unit.job.workload == "infer_onnxruntime" and unit.role in own]
    if not jobs:
        raise UsageError("--profile-ops looks into inference with ONNX Runtime, which these options leave out.")
    ceilings = measure_ceilings(jobs[0].threads, start)
    return tuple(profile_operators(job, start, ceilings) for job in jobs)


def profile_operators(job: Job, start: Start, ceilings: CeilingsRecord) -> ProfiledPass:
    """One entry, for the first batch of ``job``.

    Raises:
        EdgepeftError: a worker failed.
    """
    with tempfile.TemporaryDirectory(prefix="edgepeft-profile-") as work:
        target = Path(work) / "trace.json"
        traced = replace(job, workload="profiled", batches=job.batches[:1], settings={"trace": str(target)})
        with start("profile", traced) as worker:
            worker.ready()
            seconds = [worker.step(0).seconds for _ in range(_WARMUP + _RUNS)][_WARMUP:]
            worker.step(1)
        executed = read_trace(target)
    runs = _WARMUP + _RUNS
    types, layers = by_type(executed, ceilings, runs), by_layer(executed, ceilings, runs)
    return ProfiledPass(
        of=f"task {job.task}" if job.task else "backbone",
        rows=len(job.batches[0]),
        tokens=sum(job.batches[0]),
        runs_s=tuple(seconds),
        ceilings=ceilings,
        # What no operator accounts for: Python, the session's own work, the profiler's.
        outside_s=float(np.median(seconds)) - sum(one.seconds for one in types),
        by_type=tuple(types),
        by_layer=tuple(layers),
    )


def measure_ceilings(threads: int, start: Start) -> CeilingsRecord:
    """The best of a few steps of each probe: a ceiling is what was reached once."""
    best = {}
    for name, work in (("gemm", gemm.FLOPS_PER_STEP), ("copy", 2 * copy.BYTES_PER_STEP)):  # a copy reads and writes
        with start(f"{name} probe", Job(name, threads)) as worker:
            worker.ready()
            best[name] = work / min(worker.step(0).seconds for _ in range(_PROBES))
    return CeilingsRecord(flops_per_s=best["gemm"], bytes_per_s=best["copy"])


def by_type(executed: Sequence[Executed], ceilings: CeilingsRecord, runs: int) -> list[OperatorRecord]:
    """By operator, the one that takes most first."""
    groups: dict[str, list[Executed]] = {}
    for one in executed:
        groups.setdefault(one.op_type, []).append(one)
    return sorted(_totals(groups, ceilings, runs), key=lambda one: -one.seconds)


def by_layer(executed: Sequence[Executed], ceilings: CeilingsRecord, runs: int) -> list[OperatorRecord]:
    """By layer, in order; a fused operator has no layer in its name and counts to the one before it."""
    groups: dict[str, list[Executed]] = {}
    layer = "embeddings"
    for one in executed:
        if one.layer is not None:
            layer = f"layer {one.layer}"
        groups.setdefault(layer, []).append(one)
    return list(_totals(groups, ceilings, runs))


def _totals(groups: dict[str, list[Executed]], ceilings: CeilingsRecord, runs: int) -> Iterable[OperatorRecord]:
    for name, members in groups.items():
        # A node's time in one run: its median, times the passes that a run makes of the batch.
        warm = (one.seconds[len(one.seconds) * _WARMUP // runs :] for one in members)
        seconds = sum(float(np.median(w)) * len(one.seconds) / runs for w, one in zip(warm, members, strict=True))
        floors = (max(one.flops / ceilings.flops_per_s, one.n_bytes / ceilings.bytes_per_s) for one in members)
        floor = sum(least * len(one.seconds) / runs for least, one in zip(floors, members, strict=True))
        yield OperatorRecord(
            name=name,
            count=sum(len(one.seconds) for one in members) // runs,
            seconds=seconds,
            flops=sum(one.flops * len(one.seconds) / runs for one in members),
            bytes=sum(one.n_bytes * len(one.seconds) / runs for one in members),
            floor_s=floor,
            gap=seconds / floor if floor > 0 else None,
        )

"""Runs a plan: starts every unit's worker, interleaves their rounds, gathers samples and peaks.

Inference and fine-tuning are measured one after the other, so that at most one kind's workers are in
memory together; the host's GEMM rate is measured in the rounds of each, PyTorch's own beside PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from edgepeft.bench.measuring.host_load import HostLoad, load_between, snapshot
from edgepeft.bench.measuring.sampler import Rule, Schedule, Series, Steppable, precise, sample_rounds, steady
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.errors import DoesNotFit
from edgepeft.limits.limited_process import InForce

__all__ = ["Measured", "ProgressCallback", "Start", "Watch", "Worker", "measure_units"]

ProgressCallback = Callable[[str, int, int], None]  # what is being done, rounds done, rounds in all


class Worker(Steppable, Protocol):
    """The part of ``WorkerProcess`` that is used here; tests bring their own."""

    notes: tuple[str, ...]

    @property
    def in_force(self) -> InForce:
        """The limits on it."""

    def ready(self) -> None:
        """Wait until it can work."""

    def throttle(self) -> None:
        """Put the waiting quota in force."""

    def finish(self) -> int:
        """End the worker; return its peak resident size in bytes."""


Start = Callable[[str, Job], AbstractContextManager[Worker]]
Watch = Callable[[Worker], Steppable]  # a worker whose steps also say how the board was


@dataclass
class Measured:
    """A unit's samples and the GEMM probes' of the same rounds; ``failure`` where it did not fit."""

    unit: Unit
    series: Series = field(default_factory=Series)
    gemm: Series = field(default_factory=Series)
    pytorch_gemm: Series = field(default_factory=Series)
    reference: Series = field(default_factory=Series)
    peak_rss_bytes: int | None = None
    in_force: InForce | None = None
    notes: tuple[str, ...] = ()
    failure: DoesNotFit | None = None
    interrupted: bool = False
    load: HostLoad | None = None


def measure_units(
    units: Sequence[Unit],
    schedule: Schedule,
    start: Start,
    *,
    threads: int,
    reference: Job | None = None,
    watch: Watch = lambda worker: worker,
    progress: ProgressCallback = lambda what, done, total: None,
) -> list[Measured]:
    """Measure all units, in the order given; ``reference`` runs in the same rounds, ``watch`` adds sensors to workers.

    A unit that does not fit the memory limit is left out from then on; ``failure`` holds the reason.

    Raises:
        EdgepeftError: a worker ended for another reason.
    """
    measured = {unit.label: Measured(unit) for unit in units}
    for workload in dict.fromkeys(unit.workload for unit in units):
        group = [one for one in measured.values() if one.unit.workload == workload and one.unit.job]
        if any(one.interrupted for one in measured.values()):
            for one in group:
                one.interrupted = True
        elif group:
            probes = _probes(workload, group, threads, reference)
            _measure_together(workload, group, probes, schedule, start, watch=watch, progress=progress)
    return list(measured.values())


def _measure_together(
    workload: str,
    group: list[Measured],
    probes: Mapping[str, Measured],
    schedule: Schedule,
    start: Start,
    *,
    watch: Watch,
    progress: ProgressCallback,
) -> None:
    everyone = {one.unit.label: one for one in [*group, *probes.values()]}
    with ExitStack() as stack:
        workers = {}
        for number, (label, one) in enumerate(everyone.items()):
            progress(f"loading {label}", number, len(everyone))
            worker = _started(one, start, stack)
            if worker is not None:
                workers[label] = worker
        before = snapshot()
        series = sample_rounds(
            {label: watch(worker) for label, worker in workers.items()},
            schedule,
            _rule(schedule, group),
            warmed=lambda: _throttle(workers.values()),
            progress=lambda done, total: progress(workload, done, total),
            seldom=[one.unit.label for name, one in probes.items() if name != "reference"],
        )
        steps = (step for each in series.values() for step in (*each.warmup, *each.samples))
        load = load_between(before, snapshot(), sum(step.cpu_seconds * step.repeats for step in steps))
        for label, one in everyone.items():
            if label in workers:
                _gather(one, workers[label], series[label])
                one.load = load
    for one in group:
        for name, probe in probes.items():
            setattr(one, name, probe.series)


def _throttle(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.throttle()


def _rule(schedule: Schedule, group: Sequence[Measured]) -> Rule:
    """When to stop early; a batch's weight is its number of tokens."""
    jobs = [one.unit.job for one in group if one.unit.job]
    work = {number: float(sum(batch)) for job in jobs[:1] for number, batch in enumerate(job.batches)}
    if schedule.precision is None or schedule.min_rounds is None:
        return Rule(more_warmup=schedule.more_warmup, steady=steady)
    enough = partial(precise, work=work, precision=schedule.precision)
    return Rule(schedule.min_rounds, enough, schedule.more_warmup, steady)


def _probes(workload: str, group: Sequence[Measured], threads: int, reference: Job | None) -> dict[str, Measured]:
    """What runs beside the units, by the field of ``Measured`` that takes its samples."""
    probes = {"gemm": Unit(workload, "onnxruntime", UnitRole.GEMM, job=Job("gemm", threads))}
    if any(one.unit.engine == "pytorch" for one in group):
        probes["pytorch_gemm"] = Unit(workload, "pytorch", UnitRole.GEMM, job=Job("gemm_pytorch", threads))
    if reference is not None:
        probes["reference"] = Unit(workload, "onnxruntime", UnitRole.REFERENCE, job=reference)
    return {name: Measured(unit) for name, unit in probes.items()}


def _started(one: Measured, start: Start, stack: ExitStack) -> Worker | None:
    """The unit's worker, loaded; None if it does not fit."""
    assert one.unit.job is not None
    worker = stack.enter_context(start(one.unit.label, one.unit.job))
    one.in_force = worker.in_force
    try:
        worker.ready()
    except DoesNotFit as error:
        one.failure = error
        return None
    one.notes = worker.notes
    return worker


def _gather(one: Measured, worker: Worker, series: Series) -> None:
    one.series, one.failure, one.interrupted = series, series.failure, series.interrupted
    if one.failure is None and not one.interrupted:  # one that was interrupted may still be in its step
        one.peak_rss_bytes = worker.finish()
        one.in_force, one.notes = worker.in_force, worker.notes  # what was lost is known by now

"""Runs a plan: starts every unit's worker under limits, interleaves their rounds, gathers samples and peaks.

A worker is sent one request at a time.  Inference and fine-tuning are measured one after the other, so that at most
one kind's workers are in memory together; the host's GEMM rate is measured in the rounds of each, PyTorch's own beside
PyTorch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from operator import sub
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import edgepeft
from edgepeft.bench.measuring.sampler import Budget, Sample, Schedule, Series, Steppable, precise, sample_rounds
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.device import cgroups
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import InForce, Limits
from edgepeft.device.sensors import number

ProgressCallback = Callable[[str, int, int], None]  # what is being done, rounds done, rounds in all
_REST_S = 0.5  # Intel's OpenMP spins for 0.2 s by default
_SPAN_S = 3.0  # 30 periods of the quota: what its first and last one distort is under 2 %
_RAISED_AGAIN = {"UsageError": UsageError, "UnknownName": UsageError, "DoesNotFit": DoesNotFit}


def wait_for_rest(pid: int) -> None:
    """Wait until no thread of a process runs, but the caller's own.

    Pools of threads spin for work after a run, on cores that whoever runs next needs.
    """
    until, own = time.monotonic() + _REST_S, str(threading.get_native_id())
    while time.monotonic() < until:
        others = (each for each in (cgroups.PROC / str(pid) / "task").glob("*") if each.name != own)
        states = (cgroups.read(each / "stat") or "" for each in others)
        if not any(state.rpartition(")")[2].split()[:1] == ["R"] for state in states):
            return
        time.sleep(0.001)


class WorkerProcess:
    """One unit in a process of its own; between calls it waits and uses no processor.

    Every method raises DoesNotFit at the memory limit, and EdgepeftError with the worker's last words when it ended.
    """

    def __init__(self, label: str, job: Job, limits: Limits, *, throttled: bool = True, python: str = ""):
        """``throttled``: a quota holds from the start, else from ``throttle`` on; ``python``: another interpreter."""
        self.label = label
        self._limits = limits
        # Its standard error, in a file: a full pipe without a reader would block it.
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        package, threads = job.package or str(Path(edgepeft.__file__).resolve().parent.parent), str(job.threads)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        # Thread counts for libraries that look there, no telemetry, no network.
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        environment |= {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        # -P: a checkout in the current folder must not come before the package that is meant.
        command = [python or sys.executable, "-P", "-m", "edgepeft.bench.measuring.worker"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        self._process = LimitedProcess(command, limits, env=environment, stderr=self._said, text=True)
        self.in_force: InForce = self._process.in_force  # as the kernel reports it, in the end with what it lost
        self._span: float | None = None
        self._waiting = None if throttled else self.in_force.cpu_quota
        if self._waiting is not None:
            # Not lifted altogether: a thread pool that sees a quota when it starts does not spin.
            self._process.change_quota(float(max(1, self.in_force.cores)))
        self._ask(job.to_json())
        self.notes: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.popen.pid

    def ready(self) -> None:
        """Wait until the model is loaded."""
        self.notes = tuple(self._answer()["notes"])

    def throttle(self) -> None:
        """Put the quota of the limits in force; from now on a step is the mean over ``_SPAN_S``."""
        if self._waiting is not None:
            self.change_quota(self._waiting)
            self._waiting, self._span = None, _SPAN_S

    def change_quota(self, cores: float) -> float:
        """Set another quota; return the one in force."""
        return self._process.change_quota(cores)

    def step(self, batch: int, *, rest: bool = True) -> Sample:
        """Do one unit of work on batch number ``batch``, and ``rest`` before another worker's step."""
        self._ask(json.dumps({"step": batch, "span_s": self._span}))
        answer = self._answer()
        if rest:
            self.rest()
        each = tuple(map(float, answer.get("each", ())))
        return Sample(float(answer["seconds"]), float(answer["cpu_seconds"]), each, int(answer.get("repeats", 1)))

    def rest(self) -> None:
        """Wait until none of its threads runs."""
        wait_for_rest(self.pid)

    def finish(self) -> int:
        """End the worker in good order; return its peak resident size in bytes."""
        if (lost := self._process.lost()) is not None:
            self.notes = (*self.notes, f"limits were lost: {lost}")
            self.in_force = replace(self.in_force, emulation="partial", notes=(*self.in_force.notes, lost))
        self._ask(json.dumps({"close": True}))
        peak = int(self._answer()["peak_rss_bytes"])
        self._process.popen.wait()
        return peak

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        self._said.close()

    def _ask(self, line: str) -> None:
        stdin = self._process.popen.stdin
        assert stdin is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.popen.stdout
        assert stdout is not None
        line = stdout.readline()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._ended() from None
        if "error" not in answer:
            return answer
        kind, message = answer["error"]["kind"], answer["error"]["message"]
        if kind == "memory":
            raise self._too_large(message)
        if kind in _RAISED_AGAIN:
            raise _RAISED_AGAIN[kind](message)
        raise EdgepeftError(f"the benchmark of {self.label} failed: {message}")

    def _ended(self) -> EdgepeftError:
        """The error that explains why no answer came."""
        status = self._process.popen.wait()
        self._said.seek(0)
        words = self._said.read().strip()
        try:
            self._process.raise_if_out_of_memory(words)
        except DoesNotFit:
            return self._too_large("the process was stopped for memory")
        last = f"; it last said: {words.splitlines()[-1][:500]}" if words else ""
        killed = "; was the host out of memory? --engine and --task measure fewer at once" if status == -9 else ""
        return EdgepeftError(f"the benchmark of {self.label} ended unexpectedly (status {status}){last}{killed}")

    def _too_large(self, reason: str) -> DoesNotFit:
        allowed = self.in_force.memory_bytes or self._limits.memory_bytes
        limit = f"{allowed} bytes ({allowed / 1e6:.0f} MB) of memory are allowed" if allowed else "the host is full"
        return DoesNotFit(
            f"{self.label}: {limit}, more than that needed ({reason[:300]}). "
            "Take a smaller --batch-size or --length, or a profile with more memory."
        )


_IDLE = ("idle", "iowait", "steal", "guest", "guest_nice")  # guest time is in user time already
_SYS = Path("/sys")


class Snapshot(NamedTuple):
    """Counters of the whole host at one moment, in seconds, bytes and events."""

    at: float
    busy_s: float
    stolen_s: float
    swapped_bytes: int
    heat_events: int


class HostLoad(NamedTuple):
    """Between two snapshots: cores that others used or took, bytes swapped, times the processor held back for heat."""

    other_cores: float
    stolen_cores: float
    swapped_bytes: int
    heat_events: int


def snapshot(clock: Callable[[], float] = time.monotonic, sys: Path = _SYS) -> Snapshot:
    """Read the counters; what a system does not count is 0."""
    times = psutil.cpu_times()._asdict()
    try:
        swap = psutil.swap_memory()
        swapped = int(swap.sin) + int(swap.sout)
    except (OSError, RuntimeError):  # a container without /proc/vmstat
        swapped = 0
    busy = sum(seconds for name, seconds in times.items() if name not in _IDLE)
    counters = sys.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")
    heat = sum(int(number(path) or 0) for path in counters)
    return Snapshot(clock(), busy, times.get("steal", 0.0), swapped, heat)


def load_between(before: Snapshot, after: Snapshot, own_s: float) -> HostLoad | None:
    """The load of others: ``own_s`` CPU seconds were ours.  None where no time passed, or the clock went backwards."""
    seconds, busy, stolen, swapped, heat = map(sub, after, before)
    if seconds <= 0:
        return None
    return HostLoad(max(0.0, (busy - own_s) / seconds), max(0.0, stolen / seconds), max(0, swapped), max(0, heat))


def worse(one: HostLoad | None, other: HostLoad | None) -> HostLoad | None:
    """Join two stretches of one measurement: the larger of the rates, the sum of the counts."""
    if one is None or other is None:
        return one or other
    cores = max(one.other_cores, other.other_cores), max(one.stolen_cores, other.stolen_cores)
    return HostLoad(*cores, one.swapped_bytes + other.swapped_bytes, one.heat_events + other.heat_events)


Start = Callable[[str, Job], AbstractContextManager[WorkerProcess]]


@dataclass(frozen=True)
class Measuring:
    """What starts workers, the threads of each, and the time there is for all of it."""

    start: Start
    threads: int
    reference: Job | None  # runs in the rounds of every workload
    watch: Callable[[WorkerProcess], Steppable]  # gives a worker whose steps also say how the board was
    progress: ProgressCallback
    budget: Budget


@dataclass
class Measured:
    """A unit's samples, with what ended them, and the GEMM probes' of the same rounds."""

    unit: Unit
    series: Series = field(default_factory=Series)
    gemm: Series = field(default_factory=Series)
    pytorch_gemm: Series = field(default_factory=Series)
    reference: Series = field(default_factory=Series)
    peak_rss_bytes: int | None = None
    in_force: InForce | None = None
    notes: tuple[str, ...] = ()
    load: HostLoad | None = None


def measure_units(units: Sequence[Unit], schedule: Schedule, how: Measuring) -> list[Measured]:
    """Measure all units, in the order given.

    A unit that does not fit the memory limit is left out from then on; its series holds the reason.  Each workload
    has an equal part of the budget, with the starting of its workers; who comes too late is ``left_out``.
    """
    measured = [Measured(unit) for unit in units]
    workloads = list(dict.fromkeys(unit.workload for unit in units))
    for done, workload in enumerate(workloads):
        group = [one for one in measured if one.unit.workload == workload and one.unit.job]
        if any(one.series.interrupted for one in measured):
            for one in group:
                one.series.interrupted = True
        elif group:
            _measure_together(workload, group, schedule, how, len(workloads) - done)
    return measured


def _measure_together(workload: str, group: list[Measured], schedule: Schedule, how: Measuring, parts: int) -> None:
    """Measure a workload in one of so many ``parts`` of the time that is left."""
    # What runs beside the units, by the field of ``Measured`` that takes its samples.
    beside = {"gemm": Unit(workload, "onnxruntime", UnitRole.GEMM, job=Job("gemm", how.threads))}
    if any(one.unit.engine == "pytorch" for one in group):
        beside["pytorch_gemm"] = Unit(workload, "pytorch", UnitRole.GEMM, job=Job("gemm_pytorch", how.threads))
    if how.reference is not None:
        beside["reference"] = Unit(workload, "onnxruntime", UnitRole.REFERENCE, job=how.reference)
    probes = {name: Measured(unit) for name, unit in beside.items()}
    # Where time is short the first ones are measured: not without the host's rate, last of all PyTorch's.
    gemm, *others = probes.values()
    batches = next((one.unit.job.batches for one in group if one.unit.job), ())
    weights, within = {number: float(sum(batch)) for number, batch in enumerate(batches)}, schedule.precision
    everyone = {one.unit.label: one for one in [group[0], gemm, *group[1:], *others]}
    with ExitStack() as stack:
        workers = _load(everyone, how, stack, how.budget.part(2 * parts))

        def throttle() -> None:
            for worker in workers.values():
                worker.throttle()

        before = snapshot()
        series = sample_rounds(
            {label: how.watch(worker) for label, worker in workers.items()},
            schedule,
            enough=lambda series: within is not None and precise(series, weights, within),
            warmed=throttle,
            progress=partial(how.progress, workload),
            seldom=[one.unit.label for name, one in probes.items() if name != "reference"],
            budget=how.budget.part(parts),  # of what is left now: a worker that took long to start costs the others too
        )
        steps = (step for each in series.values() for step in (*each.warmup, *each.samples))
        load = load_between(before, snapshot(), sum(step.cpu_seconds * step.repeats for step in steps))
        for label, one in everyone.items():
            if label in workers:
                worker, own = workers[label], series[label]
                one.series, one.load = own, load
                if own.failure is None and not own.interrupted:  # one that was interrupted may still be in its step
                    one.peak_rss_bytes = worker.finish()
                    one.in_force, one.notes = worker.in_force, worker.notes  # what was lost is known by now
    for one in group:
        for name, probe in probes.items():
            setattr(one, name, probe.series)


def _load(
    everyone: Mapping[str, Measured], how: Measuring, stack: ExitStack, budget: Budget
) -> dict[str, WorkerProcess]:
    """The workers that fit memory and time; the next one is taken to need as long as the slowest before."""
    workers, slowest = dict[str, WorkerProcess](), 0.0
    for done, (label, one) in enumerate(everyone.items()):
        how.progress(f"loading {label}", done, len(everyone))
        if not budget.fits(slowest):
            one.series.left_out = True
            continue
        begin = budget.clock()
        assert one.unit.job is not None
        worker = stack.enter_context(how.start(label, one.unit.job))
        one.in_force = worker.in_force
        try:
            worker.ready()
            one.notes, workers[label] = worker.notes, worker
        except DoesNotFit as error:
            one.series.failure = error
        slowest = max(slowest, budget.clock() - begin)
    return workers

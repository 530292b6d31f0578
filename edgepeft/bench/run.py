"""The whole benchmark: from what was asked to the JSON document of the result.

Several scenarios run one after the other into one document: what an interrupted run has, a later one keeps.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from edgepeft.bench.against import SideBySide
from edgepeft.bench.compare import ResultFile
from edgepeft.bench.measuring.emulation import StartAt, setting_of
from edgepeft.bench.measuring.measure import Measured, Measuring, ProgressCallback, Start, measure_units
from edgepeft.bench.measuring.sampler import Budget, Schedule, Watched
from edgepeft.bench.operators import count_instructions, count_metrics, profile_all
from edgepeft.bench.planning import plan
from edgepeft.bench.planning.job import random_batch
from edgepeft.bench.planning.plan import PlannedRequest, Unit, UnitRole, workloads_of
from edgepeft.bench.planning.scenario import SampleKind, Scenario, load_scenario
from edgepeft.bench.planning.target import BenchedTask, write_random_tokenizer
from edgepeft.bench.qemu import Guest, find_guest
from edgepeft.bench.result import conditions
from edgepeft.bench.result.rows import energy_from_power, flops_per_instance, result_rows, row_of
from edgepeft.bench.result.schema import BenchResult, BenchRow, MetricsRecord, PredictionRecord, ScheduleRecord
from edgepeft.bench.result.statistics import summarised
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import DataError, DoesNotFit, UsageError
from edgepeft.device.cgroups import ROOT
from edgepeft.device.machine import board_name, refuse_bad_wheels
from edgepeft.device.placement import Limits
from edgepeft.device.profiles import load_profile
from edgepeft.device.roofline import Predicted, predict_seconds
from edgepeft.device.sensors import Meter, Sensors
from edgepeft.graph.cost import count_run
from edgepeft.options.verbs import BenchOptions

_COUNTED = (
    "FLOPs are those of the backbone's MatMul and Gemm at real tokens, from the architecture: padding, delta and "
    "head are not counted, rows of the last layer that no head reads are; training counts 2 passes over a frozen "
    "matrix, 3 over a trained one"
)
_NOTHING_RAN = "predicted from the graph's operators and the profile's rates: nothing ran, and this is no measurement"
_MIN_S = 1e-3  # a bound is above 0; nothing fits into it


@dataclass(frozen=True)
class Outcome:
    """The result, and what was measured, row by row."""

    result: BenchResult
    measured: tuple[Measured, ...] = ()

    @property
    def failures(self) -> tuple[DoesNotFit, ...]:
        """What did not fit the profile's memory."""
        return tuple(one.series.failure for one in self.measured if one.series.failure)


def run_benchmark(
    request: BenchOptions,
    *,
    progress: ProgressCallback = lambda what, done, total: None,
    start: Start | None = None,
    start_at: StartAt | None = None,
    against: SideBySide | None = None,
    root: Path = ROOT,
    say: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Measure everything that was asked.  ``start`` and ``start_at`` make workers; tests bring fakes, and boards.

    ``against``: another version of edgepeft, measured in the same rounds.  ``say`` is told beforehand how long it will
    take.  ``request.max_seconds`` bounds all of it but what was begun before.
    """
    plan.check_request(request)
    budget = Budget.of(request.max_seconds)
    refuse_bad_wheels("onnxruntime")
    profile, scenario = load_profile(request.profile), load_scenario(request.scenario)
    with ExitStack() as stack:
        progress("preparing the model", 0, 1)
        work = plan.plan_request(request, profile, scenario, stack)
        if request.mode == "predicted":
            return Outcome(_predicted(work))
        setting = setting_of(request.mode, profile, start=start_at, root=root, progress=progress)
        if request.bundle is None and scenario.kind is not SampleKind.BATCHES:
            write_random_tokenizer(work.subject.architecture, work.subject.bundle.folder, seed=request.seed)
        metrics, skipped = _count(work, progress)
        units = work.units(setting.threads)
        if units and units[0].role is UnitRole.REQUESTS and units[0].job:
            work = replace(work, batches=units[0].job.batches)  # of as many texts as a request has
        schedule = _schedule(request, scenario, work.batches)
        if start is None and request.cache and any(unit.job and unit.workload == "infer" for unit in units):
            progress("packing the weights", 0, 1)
            _pack(work.subject.bundle)
        if any(unit.job for unit in units):
            say(_announcement(units, schedule, work))
        meter = Meter(root) if setting.mode == "measured" else None
        if against is not None and request.bundle is None:
            subject = work.subject  # the other version has a graph of its own of the same random model
            against.make_random(subject.bundle.folder, stack, subject.name, **plan.random_options(request))
        watch = partial(Watched, sensors=Sensors(root), meter=meter)
        how = Measuring(start or setting.worker, setting.threads, setting.probe, watch, progress, budget)
        measured = (against or measure_units)(units, schedule, how)
        operators = profile_all(units, how.start) if request.profile_ops else None
        calibration = conditions.calibration_of(setting, measured)
        more = {"instructions_skipped": skipped, "operators": operators, "calibration": calibration}
        notes = [*setting.notes, *conditions.arithmetic_notes(profile, work.subject), *work.notes]
        result = _made(
            work,
            mode=setting.mode,
            host=conditions.host_of(measured, board_name(root)),
            profile=conditions.profile_of(profile, setting.limits, conditions.in_force_of(measured), notes),
            schedule=ScheduleRecord(**asdict(schedule)),
            metrics=metrics,
            results=result_rows(measured, work, setting, meter=meter, rounds=schedule.rounds),
            **{name: part for name, part in more.items() if part is not None},
        )
    return Outcome(result, tuple(measured))


def _count(work: PlannedRequest, progress: ProgressCallback) -> tuple[tuple[MetricsRecord, ...], str | None]:
    """Count what needs no clock; also say why instructions are not counted, where they were asked for."""
    request, subject, batch = work.request, work.subject, work.batches[0]
    metrics = count_metrics(subject, batch, seed=request.seed) if request.counted else []
    guest = find_guest() if request.instructions else None
    if isinstance(guest, Guest):
        progress("counting instructions", 0, 1)
        metrics += count_instructions(guest, subject, batch, seed=request.seed)
    return tuple(metrics), guest if isinstance(guest, str) else None


def _made(work: PlannedRequest, **own: Any) -> BenchResult:
    """A result of what was asked, made now."""
    model, now, commit = conditions.model_of(work.subject), datetime.now(UTC), conditions.commit_under_test()
    at = now.isoformat(timespec="seconds")
    return BenchResult(model=model, measured_at=at, commit=commit, flops_counted=_COUNTED, **own)


def _announcement(units: Sequence[Unit], schedule: Schedule, work: PlannedRequest) -> str:
    """How many processes and rounds there will be, and how long that takes on this host, roughly."""
    architecture, steps = work.subject.architecture, []
    for unit in units:
        if unit.job is not None:
            rows = [tokens + work.new_tokens for batch in unit.job.batches for tokens in batch]
            a_text = flops_per_instance(architecture, rows, unit.workload, full=unit.role is UnitRole.FULL)
            steps.append((unit.workload, a_text * len(rows) / len(unit.job.batches)))
    rounds = (schedule.min_rounds or schedule.rounds, schedule.rounds)
    warm = len(schedule.warmup_batches)
    most = rounds[1] + warm + schedule.more_warmup
    low, high = plan.expected_s(steps, (rounds[0] + warm, most), plan.gemm_rate(), schedule.max_seconds)
    bound = math.inf if work.request.max_seconds is None else work.request.max_seconds
    least = "" if rounds[0] == rounds[1] else f"{rounds[0]} to "
    return (
        f"{len(steps)} processes, {least}{rounds[1]} rounds: {plan.duration_text((min(low, bound), min(high, bound)))}"
    )


def _predicted(work: PlannedRequest) -> BenchResult:
    """The result of ``--mode predicted``, by operations and the profile's roofline: tasks, then the bare backbone."""
    if work.scenario.kind is not SampleKind.BATCHES:
        raise UsageError(f"scenario {work.scenario.name} is not of batches; --mode predicted predicts those only.")
    rows = tuple(_predicted_row(work, task) for task in (*work.subject.tasks, None))
    notes = [_NOTHING_RAN, *dict.fromkeys(note for row in rows if row.predicted for note in row.predicted.notes)]
    notes += [*conditions.arithmetic_notes(work.profile, work.subject), *work.notes]
    profile = conditions.profile_of(work.profile, Limits(), None, notes)
    return _made(work, mode="predicted", host=conditions.host_of(()), profile=profile, results=rows)


def _predicted_row(work: PlannedRequest, task: BenchedTask | None) -> BenchRow:
    """Means over the batches, the interval as throughput, and what the first batch's classes took."""
    prompt, profile, subject = task.prompt_length if task else 0, work.profile, work.subject
    graph = subject.bundle.graph(task.name if task else None)
    precision = subject.bundle.manifest.backbone.weights_dtype
    vocab_size, pad_id = subject.architecture.vocab_size, subject.architecture.pad_token_id
    by_batch = dict[tuple[int, ...], Predicted]()  # of equal batches, which are predicted once
    for batch in dict.fromkeys(work.batches):  # the graph puts a task's prompt in front by itself
        inputs = random_batch(batch, vocab_size=vocab_size, pad_id=pad_id, seed=0)
        by_batch[batch] = predict_seconds(count_run(graph, inputs).works, profile, precision=precision)
    predictions = [by_batch[batch] for batch in work.batches]
    rows = [tokens + prompt for batch in work.batches for tokens in batch]
    first, n, instances = predictions[0], len(predictions), len(rows)  # of one graph: all are known, or none
    known = [one.seconds for one in predictions if one.seconds is not None]
    at_least = [one.at_least for one in predictions if one.at_least is not None]
    intervals = [one.interval for one in predictions if one.interval is not None]
    seconds, (low, high) = sum(known), (sum(interval[end] for interval in intervals) for end in (0, 1))
    predicted = PredictionRecord(
        latency_s=seconds / n if known else None,
        interval_s=(low / n, high / n) if intervals else None,
        at_least_s=sum(at_least) / n if at_least else None,
        calibration=first.calibration,
        row=None if first.row is None else first.row.model_dump(mode="json"),
        classes={kind.value: time for kind, time in first.classes.items()},
        notes=first.notes,
        instances_per_minute_interval=(60 * instances / high, 60 * instances / low) if intervals else None,
    )
    return row_of(
        work,
        Unit("infer", "onnxruntime", UnitRole.TASK if task else UnitRole.BACKBONE, task, prompt_length=prompt),
        profile.cores.value,
        samples_s=(),
        instances_per_minute=60 * instances / seconds if known else None,
        statistics=summarised((), alike=True),
        flops_per_instance=flops_per_instance(subject.architecture, rows),
        warnings=() if known else (f"not predictable: see the notes of {profile.name}",),
        predicted=predicted,
        throttled=False,
        energy=energy_from_power(profile, seconds, instances) if known else None,
    )


def _pack(bundle: Bundle) -> None:
    """Fill the cache here, once: under a profile's limits it would cost the first worker memory, and its peak."""
    from edgepeft.runtime.session_pool import SessionPool  # not before the wheel of ONNX Runtime is known to work here

    with closing(SessionPool(bundle, cache=True, threads=None)) as weights:
        weights.prepare()


def _schedule(request: BenchOptions, scenario: Scenario, batches: Sequence[Sequence[int]]) -> Schedule:
    # The largest batch first: memory is at its most before anything is measured.
    largest = max(range(len(batches)), key=lambda index: len(batches[index]) * max(batches[index]))
    warmup = (largest, *(index % len(batches) for index in range(scenario.warmup_rounds - 1)))
    return Schedule(
        n_batches=len(batches),
        warmup_batches=warmup,
        rounds=request.rounds or scenario.rounds,
        max_seconds=request.max_seconds or scenario.max_seconds,
        seed=request.seed,
        min_rounds=None if request.rounds else scenario.min_rounds,  # who names a number gets it
        precision=None if request.rounds else scenario.precision,
        more_warmup=scenario.max_warmup_rounds - scenario.warmup_rounds,
    )


@dataclass
class BenchSession:
    """The result so far, what did not fit, and whether Ctrl-C was pressed."""

    result: BenchResult
    failures: list[DoesNotFit] = field(default_factory=list)
    interrupted: bool = False

    def add(self, outcome: Outcome, scenario: str, workloads: Sequence[str]) -> None:
        """Another scenario's rows; they replace those that an interrupted run left of it."""
        self.failures += outcome.failures
        interrupted = {one.unit.workload for one in outcome.measured if one.series.interrupted}
        self.interrupted = self.interrupted or bool(interrupted)
        old, new = self.result, outcome.result
        # As its rows name it; of a file of one's own that is the name inside.
        name = new.results[0].scenario if new.results else scenario
        schedule = new.schedule.model_copy(update={"scenario": name})
        kept = [row for row in old.results if row.scenario != name or row.workload not in workloads]
        done = ((scenario, workload) for workload in workloads if workload not in interrupted)
        rates: dict[str, object] = {}
        for rate in ("gemm_gflops", "pytorch_gemm_gflops"):
            rates[rate] = getattr(new.host, rate) or getattr(old.host, rate)
            samples = rate.replace("gflops", "samples_gflops")
            before, now = getattr(old.host, samples), getattr(new.host, samples)
            rates[samples] = {name: (*before.get(name, ()), *now.get(name, ())) for name in {**before, **now}}
        self.result = new.model_copy(
            update={
                "host": new.host.model_copy(update=rates),
                "schedule": schedule,
                "metrics": tuple({entry.of: entry for entry in (*old.metrics, *new.metrics)}.values()),
                "results": (*kept, *new.results),
                "completed": (*(old.completed or ()), *done),
                "schedules": (*(old.schedules or ()), schedule),
            }
        )


def run_scenarios(
    request: BenchOptions,
    scenarios: Sequence[str],
    *,
    keep: Callable[[BenchResult], object] = lambda result: None,
    earlier: BenchResult | None = None,
    progress: ProgressCallback = lambda what, done, total: None,
    start: Start | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> BenchSession:
    """Measure the scenarios; ``keep`` gets the result after each.  ``earlier``: what a run before this one kept.

    ``request.max_seconds`` is for all of them, in equal parts; ``say`` is told how long each will take.
    """
    plan.check_request(request)  # here too: each scenario is given its part of the time, or the least there can be
    # Scenarios may be added later, and the time that each may take does not matter.
    asked: dict[str, JsonValue] = request.model_dump(mode="json", exclude={"scenario", "max_seconds"})
    if earlier is not None:
        if (before := earlier.request) is None:
            raise UsageError("--resume: the file does not record what was asked; measure anew without --resume.")
        if other := sorted(name for name in {**before, **asked} if before.get(name) != asked.get(name)):
            changes = ", ".join(f"{name} was {before.get(name)} and is {asked.get(name)}" for name in other)
            raise UsageError(
                f"--resume continues what was asked before: {changes}. Give the same options, or another --json."
            )
    session = BenchSession(earlier or BenchResult(results=()))
    budget, names = Budget.of(request.max_seconds), list(dict.fromkeys(scenarios))
    for number, scenario in enumerate(names):
        wanted = workloads_of(request.model_copy(update={"scenario": scenario}))
        completed = session.result.completed or ()  # (scenario, workload)
        left = tuple(workload for workload in wanted if (scenario, workload) not in completed)
        if request.timed and not left:
            continue
        most_s = None if request.max_seconds is None else max(budget.part(len(names) - number).left_s, _MIN_S)
        asked_now = request.model_copy(update={"scenario": scenario, "workloads": left, "max_seconds": most_s})
        outcome = run_benchmark(asked_now, progress=progress, start=start, say=say)
        session.add(outcome, scenario, left)
        session.result = session.result.model_copy(update={"request": asked})
        keep(session.result)
        if session.interrupted:
            break
    return session


def earlier_result(path: Path) -> BenchResult | None:
    """Read what a run kept there; None where there is nothing yet."""
    if not path.exists():
        return None
    result = ResultFile.open(path).document
    if result.completed is None or result.schedules is None:
        raise DataError(f"{path} does not record what is complete; measure anew without --resume.")
    return result

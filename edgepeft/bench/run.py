"""The whole benchmark: from what was asked to the JSON document of the result."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepeft.bench.against import SideBySide
from edgepeft.bench.asked_lengths import lengths_of, ordered
from edgepeft.bench.batches import batches_of
from edgepeft.bench.calibrate import StartAt
from edgepeft.bench.counted import count_metrics
from edgepeft.bench.document import result_rows
from edgepeft.bench.facts import calibration_of, host_of, in_force_of, model_of
from edgepeft.bench.instructions import count_instructions
from edgepeft.bench.measure import Measured, Progress, Schedule, Start, measure
from edgepeft.bench.modes import setting_of
from edgepeft.bench.plan import plan
from edgepeft.bench.predicted import predicted_document
from edgepeft.bench.profile_facts import arithmetic_notes, profile_facts
from edgepeft.bench.profile_ops import profile_all
from edgepeft.bench.provenance import provenance
from edgepeft.bench.qemu import Guest, find_guest
from edgepeft.bench.random_tokenizer import write_random_tokenizer
from edgepeft.bench.request import ENGINES, WORKLOADS, Request, check_request
from edgepeft.bench.requests_plan import plan_requests
from edgepeft.bench.result_file import SCHEMA
from edgepeft.bench.scenario import Kind, Scenario, load_scenario
from edgepeft.bench.subject import Subject, open_subject, random_subject, torch_installed
from edgepeft.bench.watch import Watched
from edgepeft.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.profiles.board import board_name
from edgepeft.profiles.energy import Meter
from edgepeft.profiles.loader import load_profile
from edgepeft.profiles.sensors import ROOT, Sensors
from edgepeft.profiles.wheels import refuse_bad_wheels
from edgepeft.runtime.bundle import Bundle

__all__ = ["ENGINES", "WORKLOADS", "Outcome", "Request", "run", "workloads_of"]

_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone
_NO_TORCH = "PyTorch is not installed (pip install 'edgepeft[train]')"
_COUNTED = (
    "FLOPs are those of the backbone's MatMul and Gemm at real tokens, from the architecture: padding, delta and "
    "head are not counted; training counts 2 passes over a frozen matrix, 3 over a trained one"
)


@dataclass(frozen=True)
class Outcome:
    """The document, what did not fit the profile's memory, and what was measured, row by row."""

    document: dict[str, Any]
    failures: tuple[DoesNotFit, ...]
    measured: tuple[Measured, ...] = ()


def run(
    request: Request,
    *,
    progress: Progress = lambda what, done, total: None,
    start: Start | None = None,
    start_at: StartAt | None = None,
    against: SideBySide | None = None,
    root: Path = ROOT,
) -> Outcome:
    """Measure everything that was asked.  ``start`` and ``start_at`` make workers; tests bring fakes, and boards.

    ``against``: another version of edgepeft, measured in the same rounds.

    Raises:
        UsageError: an option that makes no sense; nothing was started.
        EdgepeftError: a worker ended for another reason than memory.
    """
    check_request(request)
    refuse_bad_wheels("onnxruntime")
    profile, scenario = load_profile(request.profile), load_scenario(request.scenario)
    with ExitStack() as stack:
        progress("preparing the model", 0, 1)
        subject = _subject(request, stack)
        lengths, notes = lengths_of(request, scenario, subject)
        rows = request.batch_size or scenario.batch_size
        batches = batches_of(ordered(lengths.values, scenario), rows)
        if request.mode == "predicted":
            made = predicted_document(subject, profile, scenario=scenario, lengths=lengths, batches=batches)
            made["profile"]["notes"] += notes
            return Outcome({**made, "model": model_of(subject), "flops_counted": _COUNTED}, ())
        setting = setting_of(request.mode, profile, start=start_at, root=root, progress=progress)
        threads = setting.threads
        if request.bundle is None and scenario.kind is not Kind.BATCHES:
            write_random_tokenizer(subject.architecture, subject.model.bundle, seed=request.seed)
        metrics = count_metrics(subject.model, batches[0], seed=request.seed) if request.counted else []
        guest = find_guest() if request.instructions else None
        if isinstance(guest, Guest):
            progress("counting instructions", 0, 1)
            metrics += count_instructions(guest, subject.model, batches[0], seed=request.seed)
        if scenario.kind is Kind.BATCHES or not request.timed:
            units = plan(
                subject.model,
                engines=request.engines or ENGINES,
                workloads=_workloads(request, scenario) if request.timed else (),
                batches=batches,
                threads=threads,
                seed=request.seed,
                peers=request.peers,
                missing=_missing(),
                cache=request.cache,
            )
        else:
            units = plan_requests(
                scenario,
                subject.model,
                lengths=lengths.values,
                rows=rows,
                threads=threads,
                seed=request.seed,
                cache=request.cache,
            )
            batches = units[0].job.batches if units[0].job else batches
        schedule, arithmetic = _schedule(request, scenario, batches), arithmetic_notes(profile, subject.model)
        if start is None and request.cache and any(unit.job and unit.workload == "infer" for unit in units):
            progress("packing the weights", 0, 1)
            _pack(subject)
        launch = start or setting.worker
        sensors, meter = Sensors(root), Meter(root) if setting.mode == "measured" else None
        if against is not None and request.bundle is None:
            _make_random(against, request, subject, stack)
        measured = (against or measure)(
            units,
            schedule,
            launch,
            threads=threads,
            reference=setting.probe,
            watch=lambda worker: Watched(worker, sensors, meter),
            progress=progress,
        )
        operators = profile_all(units, launch) if request.profile_ops else None
    results = result_rows(
        measured,
        scenario=scenario.name,
        lengths=lengths,
        architecture=subject.architecture,
        batches=batches,
        setting=setting,
        meter=meter,
        rounds=schedule.rounds,
    )
    document = {
        "schema": SCHEMA,
        "mode": setting.mode,
        "host": {**host_of(measured), "board": board_name(root)},
        "profile": profile_facts(
            profile,
            setting.limits,
            in_force_of(measured),
            [*setting.notes, *arithmetic, *notes],
        ),
        **calibration_of(setting, measured),
        "model": model_of(subject),
        **provenance(),
        "flops_counted": _COUNTED,
        "schedule": asdict(schedule),
        "metrics": metrics,
        **({"instructions_skipped": guest} if isinstance(guest, str) else {}),
        **({} if operators is None else {"operators": operators}),
        "results": results,
    }
    return Outcome(document, tuple(one.failure for one in measured if one.failure), tuple(measured))


def _make_random(against: SideBySide, request: Request, subject: Subject, stack: ExitStack) -> None:
    """The other version's own graph of the same random model."""
    against.make_random(
        subject.model.bundle,
        stack,
        request.backbone or _DEFAULT_ARCHITECTURE,
        methods=list(request.methods),
        settings=dict(request.settings),
        seed=request.seed,
        trainable=_trains(request),
    )


def _trains(request: Request) -> bool:
    """Whether tasks are fine-tuned with ONNX Runtime, which needs training graphs."""
    trains = "finetune" in workloads_of(request) and "onnxruntime" in (request.engines or ENGINES)
    return request.timed and trains


def _missing() -> dict[str, str]:
    """Engines that cannot be used here, and why."""
    if not torch_installed():
        return {"pytorch": _NO_TORCH}
    try:
        refuse_bad_wheels("torch")
    except EdgepeftError as error:
        return {"pytorch": str(error)}
    return {}


def _pack(subject: Subject) -> None:
    """Fill the cache here, once: under a profile's limits it would cost the first worker memory, and its peak."""
    from edgepeft.runtime.weights import Weights

    weights = Weights(Bundle(subject.model.bundle), cache=True, threads=None)
    weights.prepare()
    weights.close()


def _subject(request: Request, stack: ExitStack) -> Subject:
    if request.bundle is not None:
        subject = open_subject(request.bundle, tasks=request.tasks, methods=request.methods)
        _require_trainable(request, subject)
        return subject
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-bench-"))
    name = request.backbone or _DEFAULT_ARCHITECTURE
    subject = random_subject(
        name,
        Path(folder),
        methods=request.methods,
        settings=request.settings,
        seed=request.seed,
        trainable=_trains(request),
    )
    _require_trainable(request, subject)
    return subject


def _require_trainable(request: Request, subject: Subject) -> None:
    """Where nothing but fine-tuning with ONNX Runtime was asked for, see that there is something to fine-tune."""
    reasons = [task.untrainable for task in subject.model.tasks]
    if request.engines != ("onnxruntime",) or request.workloads != ("finetune",) or None in reasons:
        return
    if reasons:
        raise UsageError(f"nothing can be fine-tuned with ONNX Runtime: {reasons[0]}.")
    what = "the bundle has no task" if request.bundle else "name one with --method"
    raise UsageError(f"--workload finetune --engine onnxruntime fine-tunes a task's delta; {what}.")


def workloads_of(request: Request) -> tuple[str, ...]:
    """What will be measured: the scenario's workloads that were asked for.

    Raises:
        UnknownName: no such scenario.
        UsageError: the scenario has none of them.
    """
    return _workloads(request, load_scenario(request.scenario))


def _workloads(request: Request, scenario: Scenario) -> tuple[str, ...]:
    """Those of the scenario that were asked for."""
    found = tuple(name for name in request.workloads or scenario.workloads if name in scenario.workloads)
    if not found:
        raise UsageError(
            f"scenario {scenario.name} measures {' and '.join(scenario.workloads)}, not "
            f"{' or '.join(request.workloads)}; leave --workload out."
        )
    return found


def _schedule(request: Request, scenario: Scenario, batches: Sequence[Sequence[int]]) -> Schedule:
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

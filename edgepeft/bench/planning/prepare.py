"""What a benchmark is asked, resolved: the model, the lengths of its texts, its batches, the workloads."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgepeft.bench.planning.asked_lengths import lengths_of, ordered
from edgepeft.bench.planning.batches import Batches, Lengths, batches_of
from edgepeft.bench.planning.request import ENGINES, BenchRequest
from edgepeft.bench.planning.scenario import Scenario, load_scenario
from edgepeft.bench.planning.subject import BenchSubject, open_subject, random_subject
from edgepeft.errors import UsageError
from edgepeft.profiles.schema import Profile

__all__ = ["PreparedBench", "prepare", "trains", "workloads_of"]

_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone


@dataclass(frozen=True)
class PreparedBench:
    """What was asked, resolved: ``rows`` of a batch, the batches, ``notes`` on them."""

    request: BenchRequest
    profile: Profile
    scenario: Scenario
    subject: BenchSubject
    lengths: Lengths
    rows: int
    batches: Batches
    notes: tuple[str, ...]


def prepare(request: BenchRequest, profile: Profile, scenario: Scenario, stack: ExitStack) -> PreparedBench:
    """The model and its batches; a random model is removed when ``stack`` closes.

    Raises:
        UsageError: lengths, tasks or workloads that there are not.
    """
    subject = _subject(request, stack)
    lengths, notes = lengths_of(request, scenario, subject)
    rows = request.batch_size or scenario.batch_size
    batches = batches_of(ordered(lengths.values, scenario), rows)
    return PreparedBench(request, profile, scenario, subject, lengths, rows, batches, tuple(notes))


def trains(request: BenchRequest) -> bool:
    """Whether tasks are fine-tuned with ONNX Runtime, which needs training graphs."""
    return request.timed and "finetune" in workloads_of(request) and "onnxruntime" in (request.engines or ENGINES)


def _subject(request: BenchRequest, stack: ExitStack) -> BenchSubject:
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
        trainable=trains(request),
    )
    _require_trainable(request, subject)
    return subject


def _require_trainable(request: BenchRequest, subject: BenchSubject) -> None:
    """Where nothing but fine-tuning with ONNX Runtime was asked for, see that there is something to fine-tune."""
    reasons = [task.untrainable for task in subject.model.tasks]
    if request.engines != ("onnxruntime",) or request.workloads != ("finetune",) or None in reasons:
        return
    if reasons:
        raise UsageError(f"nothing can be fine-tuned with ONNX Runtime: {reasons[0]}.")
    what = "the bundle has no task" if request.bundle else "name one with --method"
    raise UsageError(f"--workload finetune --engine onnxruntime fine-tunes a task's delta; {what}.")


def workloads_of(request: BenchRequest) -> tuple[str, ...]:
    """What will be measured: the scenario's workloads that were asked for.

    Raises:
        UnknownName: no such scenario.
        UsageError: the scenario has none of them.
    """
    scenario = load_scenario(request.scenario)
    found = tuple(name for name in request.workloads or scenario.workloads if name in scenario.workloads)
    if not found:
        raise UsageError(
            f"scenario {scenario.name} measures {' and '.join(scenario.workloads)}, not "
            f"{' or '.join(request.workloads)}; leave --workload out."
        )
    return found

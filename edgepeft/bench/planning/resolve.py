"""Resolves a request: the model, the lengths of its texts in the scenario's order, its batches, the workloads."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgepeft.bench.planning.job import Batches, batches_of
from edgepeft.bench.planning.lengths import Lengths, full_length, load_lengths
from edgepeft.bench.planning.request import ENGINES, BenchRequest
from edgepeft.bench.planning.scenario import Order, Scenario, load_scenario
from edgepeft.bench.planning.subject import BenchSubject, open_subject, random_subject
from edgepeft.errors import UsageError
from edgepeft.profiles.schema import Profile

__all__ = ["ResolvedRequest", "resolve_request", "trains", "workloads_of"]

_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone


@dataclass(frozen=True)
class ResolvedRequest:
    """What a request stands for: ``rows`` in a batch, the batches, ``notes`` on them."""

    request: BenchRequest
    profile: Profile
    scenario: Scenario
    subject: BenchSubject
    lengths: Lengths
    rows: int
    batches: Batches
    notes: tuple[str, ...]


def resolve_request(request: BenchRequest, profile: Profile, scenario: Scenario, stack: ExitStack) -> ResolvedRequest:
    """Open or make the model and cut its batches; a random model is removed when ``stack`` closes.

    Raises:
        UsageError: lengths, tasks or workloads that there are not.
    """
    subject = _subject(request, stack)
    _require_trainable(request, subject)
    lengths, notes = _lengths(request, scenario, subject)
    rows = request.batch_size or scenario.batch_size
    batches = batches_of(sorted(lengths.values) if scenario.order is Order.SORTED else lengths.values, rows)
    return ResolvedRequest(request, profile, scenario, subject, lengths, rows, batches, tuple(notes))


def _lengths(request: BenchRequest, scenario: Scenario, subject: BenchSubject) -> tuple[Lengths, list[str]]:
    prompt = max((task.prompt_length for task in subject.model.tasks), default=0)
    longest = subject.architecture.max_length - prompt
    source = request.lengths or (scenario.lengths if request.length is None else None)
    if source is None:
        length = request.length or scenario.sequence_length
        if length > longest:
            raise UsageError(f"--length {length}: {subject.name} takes at most {longest} tokens{_beside(prompt)}.")
        return full_length(length, request.batch_size or scenario.batch_size), []
    lengths = load_lengths(source, seed=request.seed)
    cut = sum(n > longest for n in lengths.values)
    note = f"{cut} texts are longer than {subject.name} takes and were cut to {longest} tokens{_beside(prompt)}"
    return lengths.clamped(longest), [note] if cut else []


def _beside(prompt: int) -> str:
    return f" beside a prompt of {prompt}" if prompt else ""


def trains(request: BenchRequest) -> bool:
    """Whether tasks are fine-tuned with ONNX Runtime, which needs training graphs."""
    return request.timed and "finetune" in workloads_of(request) and "onnxruntime" in (request.engines or ENGINES)


def _subject(request: BenchRequest, stack: ExitStack) -> BenchSubject:
    if request.bundle is not None:
        return open_subject(request.bundle, tasks=request.tasks, methods=request.methods)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-bench-"))
    return random_subject(
        request.backbone or _DEFAULT_ARCHITECTURE,
        Path(folder),
        methods=request.methods,
        settings=request.settings,
        seed=request.seed,
        trainable=trains(request),
    )


def _require_trainable(request: BenchRequest, subject: BenchSubject) -> None:
    """Refuse a request for fine-tuning with ONNX Runtime alone where no task can be fine-tuned with it."""
    reasons = [task.untrainable for task in subject.model.tasks]
    if request.engines != ("onnxruntime",) or request.workloads != ("finetune",) or None in reasons:
        return
    if reasons:
        raise UsageError(f"nothing can be fine-tuned with ONNX Runtime: {reasons[0]}.")
    what = "the bundle has no task" if request.bundle else "name one with --method"
    raise UsageError(f"--workload finetune --engine onnxruntime fine-tunes a task's delta; {what}.")


def workloads_of(request: BenchRequest) -> tuple[str, ...]:
    """The scenario's workloads that the request names.

    Raises:
        UnknownName: no such scenario.
        UsageError: the scenario has none of them.
    """
    scenario = load_scenario(request.scenario)
    chosen = tuple(name for name in request.workloads or scenario.workloads if name in scenario.workloads)
    if not chosen:
        raise UsageError(
            f"scenario {scenario.name} measures {' and '.join(scenario.workloads)}, not "
            f"{' or '.join(request.workloads)}; leave --workload out."
        )
    return chosen

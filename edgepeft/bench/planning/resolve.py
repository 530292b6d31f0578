"""Resolves a request: the model, the lengths of its texts in the scenario's order, its batches, the workloads."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepeft.bench.planning.job import Batches, Job, batches_of
from edgepeft.bench.planning.plan import Unit, plan_requests, plan_units
from edgepeft.bench.planning.scenario import Lengths, SampleKind, Scenario, full_length, load_lengths, load_scenario
from edgepeft.bench.planning.target import BenchSubject, open_subject, random_subject, torch_installed
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError
from edgepeft.device.machine import refuse_bad_wheels
from edgepeft.device.profiles import Profile
from edgepeft.options.verbs import BenchOptions

_NEW_TOKENS = 32
_NO_TORCH = "PyTorch is not installed (pip install 'edgepeft[train]')"
_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone


ENGINES = ("onnxruntime", "pytorch")
WORKLOADS = ("infer", "finetune")
MODES = ("limits", "calibrated", "predicted")


def check_request(request: BenchOptions) -> None:
    """Refuse options that contradict each other, before anything is made."""
    for kind, asked, known in (
        ("engine", request.engines, ENGINES),
        ("workload", request.workloads, WORKLOADS),
        ("mode", (request.mode,), MODES),
    ):
        for name in asked:
            if name not in known:
                raise UnknownName(kind, name, known)
    if request.profile_ops and not request.timed:
        raise UsageError("--profile-ops takes times, and --deterministic takes none; leave one out.")
    if request.mode == "predicted":
        infers = not request.workloads or "infer" in request.workloads
        if not set(request.engines) <= {"onnxruntime"} or not infers or request.peers:
            raise UsageError(
                "--mode predicted predicts inference with ONNX Runtime; another --engine, --workload or a --peer must "
                "run."
            )
    if request.mode != "limits" and (request.profile_ops or not request.timed):
        raise UsageError(f"--profile-ops and --deterministic are about this host; leave --mode {request.mode} out.")
    _check_work(request)


def _check_work(request: BenchOptions) -> None:
    if request.max_seconds is not None and not request.max_seconds > 0:
        raise UsageError(f"--max-seconds must be above 0, got {request.max_seconds}.")
    if request.length is not None and request.lengths is not None:
        raise UsageError("--length and --lengths exclude each other; give one.")
    if request.bundle is not None and (request.backbone is not None or request.settings):
        raise UsageError("--backbone and --set make a random model; they do not go with a bundle. Leave one out.")
    if request.bundle is None and request.tasks:
        raise UsageError("--task names a task of a bundle; give the bundle's folder, or --method for random weights.")
    for peer in request.peers:
        if not peer.is_file():
            raise UsageError(f"--peer {peer}: there is no such file.")


@dataclass(frozen=True)
class ResolvedRequest:
    """What a request stands for: ``rows`` in a batch, the batches, ``notes`` on them.

    ``new_tokens`` are written of each text; 0 where none is.
    """

    request: BenchOptions
    profile: Profile
    scenario: Scenario
    subject: BenchSubject
    lengths: Lengths
    rows: int
    batches: Batches
    notes: tuple[str, ...]
    new_tokens: int = 0

    def units(self, threads: int) -> list[Unit]:
        """What is timed; nothing where only counts were asked for."""
        request, subject, batched = self.request, self.subject, self.scenario.kind is SampleKind.BATCHES
        if not request.timed:
            return []
        shared = Job(
            "",
            threads,
            self.batches if batched else (),
            str(subject.bundle.folder),
            vocab_size=subject.architecture.vocab_size,
            pad_id=subject.architecture.pad_token_id,
            seed=request.seed,
            cache=request.cache,
            new_tokens=self.new_tokens,
        )
        if not batched:
            return plan_requests(self.scenario, subject.tasks, shared, lengths=self.lengths.values, rows=self.rows)
        missing = {} if torch_installed() else {"pytorch": _NO_TORCH}
        if not missing:
            try:
                refuse_bad_wheels("torch")
            except EdgepeftError as error:
                missing["pytorch"] = str(error)
        engines, workloads = request.engines or ENGINES, workloads_of(request)
        return plan_units(
            subject.tasks, shared, engines=engines, workloads=workloads, peers=request.peers, missing=missing
        )


def resolve_request(request: BenchOptions, profile: Profile, scenario: Scenario, stack: ExitStack) -> ResolvedRequest:
    """Open or make the model and cut its batches; a random model is removed when ``stack`` closes."""
    if request.bundle is not None:
        subject = open_subject(request.bundle, tasks=request.tasks, methods=request.methods)
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-bench-")))
        subject = random_subject(request.backbone or _DEFAULT_ARCHITECTURE, folder, **random_options(request))
    if (request.engines, request.workloads) == (("onnxruntime",), ("finetune",)) and not subject.tasks:
        what = "the bundle has no task" if request.bundle else "name one with --method"
        raise UsageError(f"--workload finetune --engine onnxruntime fine-tunes a task's delta; {what}.")
    _require_measurable(request, scenario, subject)
    lengths, notes = _lengths(request, scenario, subject)
    if subject.left_out:
        notes.append(f"{', '.join(subject.left_out)} write text, and are measured where --task names them")
    new_tokens = (request.new_tokens or _NEW_TOKENS) if subject.writes else 0
    rows = request.batch_size or scenario.batch_size
    batches = batches_of(sorted(lengths.values) if scenario.order == "sorted" else lengths.values, rows)
    return ResolvedRequest(request, profile, scenario, subject, lengths, rows, batches, tuple(notes), new_tokens)


def _lengths(request: BenchOptions, scenario: Scenario, subject: BenchSubject) -> tuple[Lengths, list[str]]:
    prompt = max((task.prompt_length for task in subject.tasks), default=0)
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


def random_options(request: BenchOptions) -> dict[str, Any]:
    """What a random model is made by, besides its name, as JSON has it."""
    trains = request.timed and "finetune" in workloads_of(request) and "onnxruntime" in (request.engines or ENGINES)
    asked = {"methods": list(request.methods), "settings": dict(request.settings), "seed": request.seed}
    return {**asked, "trainable": trains}


def _require_measurable(request: BenchOptions, scenario: Scenario, subject: BenchSubject) -> None:
    """Refuse what cannot be done with text, and its option without it."""
    if not subject.writes:
        if request.new_tokens is not None:
            raise UsageError(f"--new-tokens: no task of {subject.name} that is measured writes text; leave it out.")
        return
    options = {
        f"--scenario {scenario.name}": scenario.kind is not SampleKind.BATCHES,
        "--mode predicted": request.mode == "predicted",
        "--peer": bool(request.peers),
        "--profile-ops": request.profile_ops,
        "--instructions": request.instructions,
        "--deterministic": not request.timed,
    }
    if asked := [option for option, given in options.items() if given]:
        raise UsageError(f"{', '.join(asked)}: not for tasks that write text; leave it out.")


def workloads_of(request: BenchOptions) -> tuple[str, ...]:
    """The scenario's workloads that the request names."""
    scenario = load_scenario(request.scenario)
    chosen = tuple(name for name in request.workloads or scenario.workloads if name in scenario.workloads)
    if not chosen:
        raise UsageError(
            f"scenario {scenario.name} measures {' and '.join(scenario.workloads)}, not "
            f"{' or '.join(request.workloads)}; leave --workload out."
        )
    return chosen

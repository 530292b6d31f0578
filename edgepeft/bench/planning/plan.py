"""What is measured: a request resolved to its model, the lengths of its texts and its batches, then to units.

Units are every workload on every task it applies to, the bare backbone, full fine-tuning, peers.  Where a sample is a
request to a running program instead of a batch, the plan follows from the scenario's kind.  The duration is estimated
beforehand.
"""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.bench.planning.job import Batches, Job, batches_of
from edgepeft.bench.planning.scenario import Lengths, SampleKind, Scenario, full_length, load_lengths, load_scenario
from edgepeft.bench.planning.target import BenchedTask, BenchSubject, open_subject, random_subject, torch_installed
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError
from edgepeft.common.messages import counted
from edgepeft.device.machine import refuse_bad_wheels
from edgepeft.device.profiles import Profile
from edgepeft.options.verbs import BenchOptions

_NEW_TOKENS = 32
_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone
ENGINES = ("onnxruntime", "pytorch")
WORKLOADS = ("infer", "finetune")
MODES = ("limits", "calibrated", "predicted")
_LOAD_S = 5.0  # a process, its libraries and the model
_OF_GEMM = 0.5  # of the rate of large matrix products that a Transformer's step gets
_SIZE = 1024
_MIN = 3  # tokens of a text: two special ones and a word


class UnitRole(StrEnum):
    """A unit's part in comparisons: ratios are taken to backbones, peers and full fine-tuning."""

    TASK = "task"
    BACKBONE = "backbone"
    LENGTHENED = "lengthened"  # the bare backbone on rows as long as a prompt makes them
    FULL = "full"
    PEER = "peer"
    GEMM = "gemm"
    REQUESTS = "requests"  # ``variant`` names what a sample is
    REFERENCE = "reference"  # a profile's, while its quota holds


@dataclass(frozen=True)
class Unit:
    """One row of the result.  ``job`` is None where it cannot be measured; ``unavailable`` is the reason."""

    workload: str
    engine: str
    role: UnitRole
    task: BenchedTask | None = None
    peer: str | None = None
    job: Job | None = None
    unavailable: str | None = None
    prompt_length: int = 0  # tokens that each row has more than its text
    variant: str | None = None  # how requests are put, where the scenario compares ways
    base: bool = False  # of another version, which is measured beside this one

    @property
    def method(self) -> str | None:
        """The PE method's name; ``full`` where everything is trained."""
        return "full" if self.role is UnitRole.FULL else self.task.method if self.task else None

    @property
    def label(self) -> str:
        """Name for progress and messages, unique within a plan."""
        what = {
            UnitRole.TASK: f"task {self.task.name}" if self.task else "",
            UnitRole.PEER: f"peer {self.peer}",
            UnitRole.REQUESTS: f"requests: {self.variant}",
            UnitRole.LENGTHENED: f"backbone on {self.prompt_length} tokens more",
        }
        return f"{self.workload} {self.engine} {what.get(self.role, self.role.value)}{' of the base' * self.base}"


def plan_units(
    tasks: Sequence[BenchedTask],
    shared: Job,
    *,
    engines: Sequence[str],
    workloads: Sequence[str],
    peers: Sequence[Path] = (),
    missing: Mapping[str, str] | None = None,
) -> list[Unit]:
    """List every unit of the benchmark; their jobs begin as ``shared``, with the batches of the texts.

    ``engines`` are "onnxruntime", "pytorch" or both, ``workloads`` "infer", "finetune" or both; ``peers`` are ONNX
    files of other encoders; ``missing`` says of an engine why it cannot be used here.
    """
    units = list[Unit]()
    for workload in workloads:
        asked = list(engines)
        if workload == "finetune" and "onnxruntime" in asked and "pytorch" not in {*asked, *(missing or {})}:
            asked.append("pytorch")  # beside fine-tuning with ONNX Runtime PyTorch's is measured, where it is installed
        for engine in asked:
            units += [_planned(shared, bare, missing or {}) for bare in _subjects(workload, engine, tasks)]
    if "infer" in workloads:
        stems = [path.stem for path in peers]
        for path in peers:  # by its file's name, with its folder's where two are called alike
            alike = stems.count(path.stem) > 1
            name = f"{path.resolve().parent.name}/{path.stem}" if alike else path.stem
            job = replace(shared, workload="peer", bundle="", model=str(path))
            units.append(Unit("infer", "onnxruntime", UnitRole.PEER, peer=name, job=job))
    return units


def _subjects(workload: str, engine: str, tasks: Sequence[BenchedTask]) -> list[Unit]:
    """Tasks, and what they are compared with: the bare backbone (on rows as long as theirs), or training everything."""
    unit, other = partial(Unit, workload, engine), UnitRole.BACKBONE if workload == "infer" else UnitRole.FULL
    own = []
    for task in tasks:
        role = UnitRole.FULL if workload == "finetune" and task.trains_everything else UnitRole.TASK
        own.append(unit(role, task, prompt_length=task.prompt_length))
    # Without a task, training everything is PyTorch's only: ONNX Runtime trains the tensors of a task.
    if any(one.role is other for one in own) or (workload, engine) == ("finetune", "onnxruntime"):
        return own
    prompts = sorted({one.prompt_length for one in own} - {0}) if workload == "infer" else []
    return [*own, unit(other), *(unit(UnitRole.LENGTHENED, prompt_length=prompt) for prompt in prompts)]


def _planned(shared: Job, bare: Unit, missing: Mapping[str, str]) -> Unit:
    """``bare`` with its job, or with the reason why it has none."""
    reason = missing.get(bare.engine)
    if bare.task and (bare.workload, bare.engine) == ("finetune", "onnxruntime"):
        reason = reason or bare.task.untunable
    if reason:
        return replace(bare, unavailable=reason)
    does = "write" if shared.new_tokens and bare.workload == "infer" else bare.workload
    job = replace(shared, workload=f"{does}_{bare.engine}", method=bare.method)
    if task := bare.task:
        job = replace(job, task=task.name, settings=dict(task.settings), n_labels=task.n_labels, kind=task.kind)
    if bare.role is UnitRole.LENGTHENED:
        job = replace(job, batches=tuple(tuple(n + bare.prompt_length for n in batch) for batch in job.batches))
    return replace(bare, job=job)


def plan_requests(
    scenario: Scenario, tasks: Sequence[BenchedTask], shared: Job, *, lengths: Sequence[int], rows: int
) -> list[Unit]:
    """List the units of a scenario whose kind is not ``batches``."""
    if not Path(shared.bundle, "tokenizer.json").is_file():
        raise UsageError(f"scenario {scenario.name} begins with texts, and {shared.bundle} has no tokenizer.json.")
    tokens = [max(_MIN, length) for length in lengths]
    if scenario.kind is SampleKind.COLD_START:  # a process of one task, or of the bare backbone where there is none
        task = tasks[0] if tasks else None
        job = replace(shared, workload="cold_start", batches=_cut(tokens, rows)[:1], task=task.name if task else None)
        return [Unit("infer", "onnxruntime", UnitRole.REQUESTS, task, job=job, variant="a new process")]
    if len(tasks) < 2:
        raise UsageError(
            f"scenario {scenario.name} needs two tasks or more, found {len(tasks)}; give a bundle that has them, or "
            "--method more than once."
        )
    names, asked = [task.name for task in tasks[: scenario.tasks]], dict[str, list[dict[str, Any]]]()
    if scenario.kind is SampleKind.TASK_SWITCH:  # the i-th request is to the i-th task, in turn, or always to the first
        # As many texts as tasks at least, so that the turn comes round to all of them.
        batches = _cut([*tokens] * -(-len(names) * rows // len(tokens)), rows)
        batches = batches[: len(batches) // len(names) * len(names)]
        for way, turn in {"another task each time": names, "the same task": names[:1]}.items():
            turns = enumerate(batches)
            asked[way] = [{"how": "one", "tasks": [turn[i % len(turn)]], "tokens": batch} for i, batch in turns]
    else:  # one request with rows of every task, beside the same rows task after task
        batches = _cut(tokens, max(1, rows // len(names)) * len(names))
        for way, how in {"one mixed batch": "mixed", "task after task": "each"}.items():
            asked[way] = [{"how": how, "tasks": names, "tokens": batch} for batch in batches]
    job = replace(shared, workload="requests", batches=batches)
    jobs = {way: replace(job, settings={"requests": requests}) for way, requests in asked.items()}
    return [Unit("infer", "onnxruntime", UnitRole.REQUESTS, job=own, variant=way) for way, own in jobs.items()]


def _cut(tokens: Sequence[int], size: int) -> Batches:
    """Consecutive requests of ``size`` texts."""
    repeated = [*tokens] * -(-size // len(tokens))
    return batches_of(repeated[: max(size, len(tokens))], size)


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
    infers = set(request.engines) <= {"onnxruntime"} and (not request.workloads or "infer" in request.workloads)
    if request.mode == "predicted" and (request.peers or not infers):
        raise UsageError(
            "--mode predicted predicts inference with ONNX Runtime; another --engine, --workload or a --peer must run."
        )
    if request.mode != "limits" and (request.profile_ops or not request.timed):
        raise UsageError(f"--profile-ops and --deterministic are about this host; leave --mode {request.mode} out.")
    if request.max_seconds is not None and not 0 < request.max_seconds < math.inf:
        raise UsageError(f"--max-seconds must be above 0 and finite, got {request.max_seconds}.")
    if request.length is not None and request.lengths is not None:
        raise UsageError("--length and --lengths exclude each other; give one.")
    if request.bundle is not None and (request.backbone is not None or request.settings):
        raise UsageError("--backbone and --set make a random model; they do not go with a bundle. Leave one out.")
    if request.bundle is None and request.tasks:
        raise UsageError("--task names a task of a bundle; give the bundle's folder, or --method for random weights.")
    if absent := [peer for peer in request.peers if not peer.is_file()]:
        raise UsageError(f"--peer {absent[0]}: there is no such file.")


@dataclass(frozen=True)
class PlannedRequest:
    """A request with its model, lengths and batches; ``rows`` is the batch size, ``notes`` are for people."""

    request: BenchOptions
    profile: Profile
    scenario: Scenario
    subject: BenchSubject
    lengths: Lengths
    rows: int
    batches: Batches
    notes: tuple[str, ...]
    new_tokens: int = 0  # that are written of each text

    def units(self, threads: int) -> list[Unit]:
        """List what is timed: nothing where only counts were asked for."""
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
        missing = {}
        try:
            refuse_bad_wheels("torch")
        except EdgepeftError as error:
            missing["pytorch"] = str(error)
        if not torch_installed():
            missing["pytorch"] = "PyTorch is not installed (pip install 'edgepeft[train]')"
        engines, workloads = request.engines or ENGINES, workloads_of(request)
        return plan_units(
            subject.tasks, shared, engines=engines, workloads=workloads, peers=request.peers, missing=missing
        )


def plan_request(request: BenchOptions, profile: Profile, scenario: Scenario, stack: ExitStack) -> PlannedRequest:
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
    return PlannedRequest(request, profile, scenario, subject, lengths, rows, batches, tuple(notes), new_tokens)


def _lengths(request: BenchOptions, scenario: Scenario, subject: BenchSubject) -> tuple[Lengths, list[str]]:
    prompt = max((task.prompt_length for task in subject.tasks), default=0)
    longest, beside = subject.architecture.max_length - prompt, f" beside a prompt of {prompt}" if prompt else ""
    source = request.lengths or (scenario.lengths if request.length is None else None)
    if source is None:
        length = request.length or scenario.sequence_length
        if length > longest:
            raise UsageError(f"--length {length}: {subject.name} takes at most {longest} tokens{beside}.")
        return full_length(length, request.batch_size or scenario.batch_size), []
    lengths = load_lengths(source, seed=request.seed)
    cut = sum(n > longest for n in lengths.values)
    note = f"{counted(cut, 'text is')} longer than {subject.name} takes, cut to {longest} tokens{beside}"
    return lengths.clamped(longest), [note] if cut else []


def random_options(request: BenchOptions) -> dict[str, Any]:
    """Options of ``random_subject`` besides the name, as plain JSON."""
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


def gemm_rate(clock: Callable[[], float] = time.perf_counter) -> float:
    """FLOP/s of a float32 product of two large matrices here, on all threads; takes a tenth of a second."""
    matrix = np.ones((_SIZE, _SIZE), np.float32)
    seconds = []
    for _ in range(3):
        begin = clock()
        matrix @ matrix
        seconds.append(max(clock() - begin, 1e-9))
    return 2 * _SIZE**3 / min(seconds)


def expected_s(
    steps: Sequence[tuple[str, float]], rounds: tuple[int, int], rate: float, most_s: float
) -> tuple[float, float]:
    """The least and the most seconds: of workers that start, then do between so many rounds, warming up included.

    ``steps``: workload and FLOP of a step, of each unit; ``rate``: FLOP/s; after ``most_s`` no new round begins.
    """
    a_round = {workload: 0.0 for workload, _ in steps}
    for workload, flop in steps:
        a_round[workload] += flop / (_OF_GEMM * rate)
    low, high = (len(steps) * _LOAD_S + sum(min(n * each, most_s) for each in a_round.values()) for n in rounds)
    return low, high


def duration_text(ends: tuple[float, float]) -> str:
    """``about 3 to 8 minutes``, or one figure where both are the same."""
    low, high = (f"{end:.0f}" if ends[1] < 90 else f"{end / 60:.0f}" for end in ends)
    unit = "seconds" if ends[1] < 90 else "minutes"
    return f"about {low} {unit}" if low == high else f"about {low} to {high} {unit}"

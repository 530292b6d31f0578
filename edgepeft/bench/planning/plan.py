"""What is measured: every workload on every task it applies to, the bare backbone, full fine-tuning, peers.

Where a sample is a request to a running program instead of a batch, the scenario's kind says what is planned.  How long
a plan will take is said before anything is measured, and no more than a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.bench.planning.job import Batches, Job, batches_of
from edgepeft.bench.planning.scenario import SampleKind, Scenario
from edgepeft.common.errors import UsageError

_LOAD_S = 5.0  # a process, its libraries and the model
_OF_GEMM = 0.5  # of the rate of large matrix products that a Transformer's step gets
_SIZE = 1024


class UnitRole(StrEnum):
    """What a unit is to the others: ratios are taken to backbones, peers and full fine-tuning."""

    TASK = "task"
    BACKBONE = "backbone"
    LENGTHENED = "lengthened"  # the bare backbone on rows as long as a prompt makes them
    FULL = "full"
    PEER = "peer"
    GEMM = "gemm"
    REQUESTS = "requests"  # ``variant`` names what a sample is
    REFERENCE = "reference"  # a profile's, while its quota holds


@dataclass(frozen=True)
class BenchedTask:
    """A task as its manifest describes it: name, method, the method's settings, outputs, tokens put before a text.

    ``kind`` is None where its outputs say it (``Job.task_kind``), as other versions know it.
    ``trains_everything``: its method trains all weights, so it is itself what other tasks are compared with.
    """

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    n_labels: int = 2
    prompt_length: int = 0
    kind: str | None = None
    trains_everything: bool = False


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
        """For progress and messages, unique within a plan."""
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
    units = []
    for workload in workloads:
        asked = list(engines)
        if workload == "finetune" and "onnxruntime" in asked and "pytorch" not in {*asked, *(missing or {})}:
            asked.append("pytorch")  # beside fine-tuning with ONNX Runtime PyTorch's is measured, where it is installed
        for engine in asked:
            for role, task, prompt in _subjects(workload, engine, tasks):
                units.append(_unit(shared, Unit(workload, engine, role, task, prompt_length=prompt), missing or {}))
    if "infer" in workloads:
        stems = [path.stem for path in peers]
        for path in peers:  # by its file's name, with its folder's where two are called alike
            alike = stems.count(path.stem) > 1
            name = f"{path.resolve().parent.name}/{path.stem}" if alike else path.stem
            job = replace(shared, workload="peer", bundle="", model=str(path))
            units.append(Unit("infer", "onnxruntime", UnitRole.PEER, peer=name, job=job))
    return units


def _subjects(
    workload: str, engine: str, tasks: Sequence[BenchedTask]
) -> list[tuple[UnitRole, BenchedTask | None, int]]:
    """Tasks, and what they are compared with: the bare backbone (on rows as long as theirs), or training everything.

    Without a task, training everything is PyTorch's only: ONNX Runtime trains the tensors of a task.
    """
    other = UnitRole.BACKBONE if workload == "infer" else UnitRole.FULL
    own: list[tuple[UnitRole, BenchedTask | None, int]] = []
    for task in tasks:
        role = UnitRole.FULL if workload == "finetune" and task.trains_everything else UnitRole.TASK
        own.append((role, task, task.prompt_length))
    if any(role is other for role, _, _ in own) or (workload, engine) == ("finetune", "onnxruntime"):
        return own
    prompts = sorted({prompt for _, _, prompt in own if prompt}) if workload == "infer" else []
    return [*own, (other, None, 0), *((UnitRole.LENGTHENED, None, prompt) for prompt in prompts)]


def _unit(shared: Job, bare: Unit, missing: Mapping[str, str]) -> Unit:
    """``bare`` with its job, or with the reason why it has none."""
    reason = missing.get(bare.engine)
    if reason:
        return replace(bare, unavailable=reason)
    does = "write" if shared.new_tokens and bare.workload == "infer" else bare.workload
    job = replace(shared, workload=f"{does}_{bare.engine}", method=bare.method)
    if task := bare.task:
        job = replace(job, task=task.name, settings=dict(task.settings), n_labels=task.n_labels, kind=task.kind)
    if bare.role is UnitRole.LENGTHENED:
        job = replace(job, batches=tuple(tuple(n + bare.prompt_length for n in batch) for batch in job.batches))
    return replace(bare, job=job)


_LEAST = 3  # tokens of a text: two special ones and a word


def plan_requests(
    scenario: Scenario, tasks: Sequence[BenchedTask], shared: Job, *, lengths: Sequence[int], rows: int
) -> list[Unit]:
    """List the units of a scenario whose kind is not ``batches``."""
    if not Path(shared.bundle, "tokenizer.json").is_file():
        raise UsageError(f"scenario {scenario.name} begins with texts, and {shared.bundle} has no tokenizer.json.")
    tokens = [max(_LEAST, length) for length in lengths]
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
    ends = []
    for count in rounds:
        each = {workload: 0.0 for workload, _ in steps}
        for workload, flop in steps:
            each[workload] += count * flop / (_OF_GEMM * rate)
        ends.append(len(steps) * _LOAD_S + sum(min(seconds, most_s) for seconds in each.values()))
    return ends[0], ends[1]


def in_words(ends: tuple[float, float]) -> str:
    """``about 3 to 8 minutes``, or one figure where both are the same."""
    low, high = (f"{end:.0f}" if ends[1] < 90 else f"{end / 60:.0f}" for end in ends)
    unit = "seconds" if ends[1] < 90 else "minutes"
    return f"about {low} {unit}" if low == high else f"about {low} to {high} {unit}"

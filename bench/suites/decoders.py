"""Small decoders: a step, a prompt, LoRA, rows of several tasks, and memory, beside the engines that people use.

Each side writes the same number of tokens of every row, greedily, and no token ends a text.  A step is measured by
texts of 32 tokens after 8, a prompt by 128 tokens and the first one that follows, label words behind an instruction of
40 tokens and a text of 64.  Ours has 8 bits, peers have what
their names say.  A goal is no measurement: those beside peers are of their 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, bytes_row, ratio_row
from bench.suites._suite_run import Racer, SuiteRun, proportional_bytes
from edgepeft.backbones.base import LINEAR_ROLES
from edgepeft.bench.planning.job import Batches, Job, Prepared
from edgepeft.bench.planning.target import texts_of
from edgepeft.common.errors import UsageError
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime

TITLE = "Small decoders"
ARCHITECTURE = "SmolLM2-135M"

_OWN = "edgepeft int8"
_EIGHT = tuple(f"task{number}" for number in range(8))


class _Case(NamedTuple):
    """Rows of so many tokens, how many each gets, and the throughput to reach over that of some peers."""

    what: str
    batches: Batches
    tokens: int
    goals: dict[str, float]


_BARE = {
    "step": _Case("a step of one row", ((8,),), 32, {"genai int4": 1 / 1.05}),
    "steps": _Case("a step of four rows", ((8, 8, 8, 8),), 32, {"genai int4": 1.0, "llama.cpp Q4_0": 1 / 0.72}),
    "prompt": _Case("a prompt of 128 tokens", ((128,),), 1, {"genai int4": 1 / 0.82, "llama.cpp Q4_0": 1 / 0.6}),
}
CASES = (*_BARE, "lora", "mixed", "words", "memory")
_INSTRUCTION, _TEXT = 40, 64
_GENAI = ("decoder_genai", ("onnxruntime-genai", "onnxruntime"))
_LLAMA_CPP = ("decoder_llama_cpp", ("xllamacpp",))
_PEERS = {
    "genai int8": (*_GENAI, "int8"),
    "genai int4": (*_GENAI, "int4"),
    "llama.cpp Q8_0": (*_LLAMA_CPP, "Q8_0"),
    "llama.cpp Q4_0": (*_LLAMA_CPP, "Q4_0"),
}
# Name -> roles, the throughput to keep of the bare backbone's, that of four tasks over one after another, and over
# four rows of one task.
_LORA = {
    "q, v": (("query", "value"), 1 / 1.02, 2.2, 1 / 1.03),
    "all linears": (tuple(map(str, LINEAR_ROLES)), 1 / 1.07, 2.0, 1 / 1.15),
}


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Each case that was asked for."""
    if not run.sizes.decoder_only:
        raise UsageError(f"the suite decoders needs a decoder alone; {run.architecture} is none.")
    for name in run.cases or CASES:
        if name in _BARE:
            yield from _beside_peers(run, _BARE[name])
        else:
            yield from {"lora": _lora, "mixed": _mixed, "words": _words, "memory": _memory}[name](run)


def _beside_peers(run: SuiteRun, case: _Case) -> Iterator[SuiteRow]:
    racers = {_OWN: Racer(run.job("write_onnxruntime", _bundle(run), batches=case.batches, new_tokens=case.tokens))}
    for label, (name, packages, form) in _PEERS.items():
        model, python = run.peer(name, task=form), run.pythons.get(name, "")
        if isinstance(model, str):
            yield SuiteRow(case.what, label, note=model)
            continue
        given = {"batches": case.batches, "model": str(model), "new_tokens": case.tokens}
        racers[label] = Racer(run.job(f"bench.peers.{name}.write", model.parent, **given), python=python)
        run.note_versions(label, packages, python)
    raced = run.race(case.what, racers)
    for label in [label for label in racers if label != _OWN]:
        target = Target(case.goals[label]) if label in case.goals else None
        yield ratio_row(case.what, raced, _OWN, label, target)


def _lora(run: SuiteRun) -> Iterator[SuiteRow]:
    for case in _BARE.values():
        given = {"batches": case.batches, "new_tokens": case.tokens}
        racers = {"bare": Racer(run.job("write_onnxruntime", _bundle(run), **given))}
        for name in _LORA:
            racers[name] = Racer(run.job("write_onnxruntime", _with_lora(run, name), task=_EIGHT[0], **given))
        raced = run.race(f"LoRA, {case.what}", racers)
        for name, (_, kept, *_) in _LORA.items():
            yield ratio_row(f"LoRA of {name}, {case.what}", raced, name, "bare", Target(kept))


def _mixed(run: SuiteRun) -> Iterator[SuiteRow]:
    case = _BARE["steps"]
    for name, (_, _, over_apart, over_one) in _LORA.items():
        sides = {
            "four tasks": (_EIGHT[:4], False),
            "one after another": (_EIGHT[:4], True),
            "one task": (_EIGHT[:1] * 4, False),
        }
        racers = {
            label: Racer(
                run.job(
                    f"{__name__}.{write_together.__name__}",
                    _with_lora(run, name),
                    batches=case.batches,
                    new_tokens=case.tokens,
                    settings={"tasks": tasks, "apart": apart},
                )
            )
            for label, (tasks, apart) in sides.items()
        }
        what = f"four rows of four tasks, LoRA of {name}"
        raced = run.race(what, racers)
        yield ratio_row(what, raced, "four tasks", "one after another", Target(over_apart))
        yield ratio_row(what, raced, "four tasks", "one task", Target(over_one))


def write_together(job: Job) -> Prepared:
    """A worker's: texts of several tasks in one batch, or with ``settings["apart"]`` one after another.

    ``settings["tasks"]``: each row's task; ``batches`` has one batch, whose rows are texts of so many tokens.
    """
    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    decoding, texts = Decoding(max_new_tokens=job.new_tokens, ends=False), texts_of(job.batches[0], seed=job.seed)
    tasks = job.settings["tasks"]
    rows = [([task], [text]) for task, text in zip(tasks, texts, strict=True)]

    def step(_: int) -> None:
        for some, of_them in rows if job.settings["apart"] else [(tasks, texts)]:
            runtime.predict_mixed(some, of_them, decoding=decoding)

    return Prepared(step)


def _words(run: SuiteRun) -> Iterator[SuiteRow]:
    settings = {"rank": "8", "roles": ",".join(_LORA["q, v"][0])}
    bundle = run.bundle("label-words", [Structure("lora", _EIGHT[:1], settings, "labels")], weights="int8")
    given = {"batches": ((_INSTRUCTION + _TEXT,),), "task": _EIGHT[0]}
    racers = {
        label: Racer(run.job(f"{__name__}.score_words", bundle, settings={"known": known}, **given))
        for label, known in {"cached": _INSTRUCTION, "whole": 0}.items()
    }
    what = f"label words behind a text of {_TEXT} tokens and a cached instruction of {_INSTRUCTION}"
    yield ratio_row(what, run.race(what, racers), "cached", "whole", Target(1.5))


def score_words(job: Job) -> Prepared:
    """A worker's: label words behind a text, whose first ``settings["known"]`` tokens the task's cache has already."""
    runtime, task = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache), job.task
    inputs = {name: job.batch(0)[name] for name in runtime.bundle.architecture.inputs}
    known = inputs["input_ids"][0, : job.settings["known"]].tolist()
    runtime.generator.leading = lambda _: known
    assert task is not None, "labels are a task's"

    def step(_: int) -> None:
        runtime.logits(task, inputs)

    return Prepared(step)


def _memory(run: SuiteRun) -> Iterator[SuiteRow]:
    bundle = _with_lora(run, "q, v")
    job = run.job("write_onnxruntime", bundle, batches=((64,),), new_tokens=8, settings={"tasks": _EIGHT})
    with run.worker("eight tasks", job) as worker:
        for number in range(len(_EIGHT)):
            worker.step(number)
        resident = proportional_bytes(worker.pid)
    stored = sum(file.stat().st_size for file in (*bundle.glob("*.safetensors"), *bundle.glob("tasks/*.onnx")))
    what = "memory of eight resident tasks over the bytes of weights and deltas"
    sides = {"resident": resident, "stored": stored}
    yield bytes_row(what, sides, Target(1.5, at_least=False), unit="bytes ratio")


def _bundle(run: SuiteRun) -> Path:
    return run.bundle("bare-int8", weights="int8")


def _with_lora(run: SuiteRun, name: str) -> Path:
    """Eight tasks of rank 8 over 8 bits."""
    settings = {"rank": "8", "roles": ",".join(_LORA[name][0])}
    structure = Structure("lora", _EIGHT, settings, head="text", labels=None)
    return run.bundle(f"lora-{name.replace(', ', '-').replace(' ', '-')}", [structure], weights="int8")

"""Text and labels of a T5 beside the tools that people write text with: greedy, labels, 8 bits, deltas, memory.

Every side writes the same number of tokens of every row: our random weights choose no token that ends a text (a worker
that sees one stops the run), transformers, optimum and OpenVINO know none (``eos_token_id = None``), CTranslate2 may
take none before (``min_decoding_length``).  Of CTranslate2's two libraries of products the faster one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, bytes_row, ratio_row
from bench.suites._suite_run import Racer, SuiteRun, proportional_bytes
from edgepeft.bench.planning.job import Batches
from edgepeft.bench.planning.target import torch_installed
from edgepeft.bundle.manifest import WeightsDtype
from edgepeft.common.errors import UsageError
from edgepeft.device.machine import isa_flags

TITLE = "Text and labels of a T5"
ARCHITECTURE = "t5-base"

_ONE: Batches = ((64,),)
_EIGHT: Batches = ((64, 20, 35, 50, 41, 12, 57, 28),)  # mean 38
_OWN, _INT8 = "edgepeft", "edgepeft, int8"
# MNLI's, whose longest is three tokens of T5's; the random tokenizer's are letters.
_LABELS, _LABEL_IDS, _LONGEST = ("a b c", "d", "e"), ((3, 4, 5), (6,), (7,)), 3
_WRITE = "write_onnxruntime"
_NINE = tuple(f"pfeiffer{number}" for number in range(9))
_OUT_OF_REACH = 4.0  # times our fp32: MKL's int8 takes 12 times as long on some processors


class _Case(NamedTuple):
    """Rows of so many tokens, and how many each of them gets; None where labels are scored."""

    batches: Batches
    tokens: int | None
    target: float  # of the throughput of the fastest float32 peer

    @property
    def what(self) -> str:
        rows = "one row" if self.batches is _ONE else f"{len(self.batches[0])} rows"
        return f"{rows}, {f'{self.tokens} tokens greedy' if self.tokens else f'{len(_LABELS)} labels'}"


_WRITTEN = {
    "one-8": _Case(_ONE, 8, 0.97),
    "one-32": _Case(_ONE, 32, 0.97),
    "eight-8": _Case(_EIGHT, 8, 1.2),
    "eight-32": _Case(_EIGHT, 32, 1.1),
    "one-labels": _Case(_ONE, None, 1.6),
    "eight-labels": _Case(_EIGHT, None, 1.6),
}
_INT8_TARGETS = {False: 1.6, True: 2.3}  # of CTranslate2's int8: text, labels
CASES = (*_WRITTEN, "deltas", "memory")


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Each case that was asked for."""
    if run.sizes.decoder is None:
        raise UsageError(f"the suite text needs a backbone that writes; {run.architecture} has no decoder.")
    for name in run.cases or CASES:
        if name in _WRITTEN:
            yield from _beside_peers(run, _WRITTEN[name])
        elif name == "deltas":
            yield from _deltas(run)
        else:
            yield from _memory(run)


def _beside_peers(run: SuiteRun, case: _Case) -> Iterator[SuiteRow]:
    racers, missing = _peers(run, case)
    fp32, int8 = [name for name in racers if "int8" not in name], [name for name in racers if "int8" in name]
    own = {_OWN: _ours(run, case), _INT8: _ours(run, case, weights="int8")}
    raced = run.race(case.what, {**own, **racers}, slowest=_OUT_OF_REACH)
    fastest = min(fp32, key=lambda name: float(np.median(raced[name])), default=None)
    for peer in fp32:
        yield _ratio(f"fp32, {case.what}", raced, _OWN, peer, Target(case.target) if peer == fastest else None)
    better = min(int8, key=lambda name: float(np.median(raced[name])), default=None)
    vnni = any("vnni" in flag for flag in isa_flags())
    for peer in int8:
        # Promised where the processor adds 8-bit products in one instruction.
        target = Target(_INT8_TARGETS[case.tokens is None]) if peer == better and vnni else None
        yield _ratio(f"int8, {case.what}", raced, _INT8, peer, target)
    yield ratio_row(f"int8, {case.what}", raced, _INT8, _OWN)
    for peer, reason in missing.items():
        yield SuiteRow(case.what, peer, note=reason)


def _ratio(what: str, raced: Mapping[str, Sequence[float]], own: str, peer: str, target: Target | None) -> SuiteRow:
    """Paired rounds; a peer that was out of reach has one sample."""
    if len(raced[peer]) == len(raced[own]):
        return ratio_row(what, raced, own, peer, target)
    samples = {label: raced[label] for label in (own, peer)}
    note = f"one step of {peer}, {raced[peer][0]:.2f} s, not in the rounds: more than {_OUT_OF_REACH:g} times ours"
    return SuiteRow(what, peer, raced[peer][0] / float(np.median(raced[own])), samples=samples, note=note)


def _ours(run: SuiteRun, case: _Case, *, weights: WeightsDtype = "fp32") -> Racer:
    """The bare model's text; labels, which are a task's, by one of LoRA's, which costs what it costs."""
    if case.tokens is None:
        structure = Structure("lora", ["labels"], {"rank": "8"}, labels=_LABELS)
        bundle = run.bundle(f"labels-{weights}", [structure], weights=weights)
        return Racer(run.job("infer_onnxruntime", bundle, batches=case.batches, task="labels"))
    bundle = run.bundle("bare" if weights == "fp32" else "bare-int8", weights=weights)
    return Racer(run.job(_WRITE, bundle, batches=case.batches, new_tokens=case.tokens))


def _peers(run: SuiteRun, case: _Case) -> tuple[dict[str, Racer], dict[str, str]]:
    """Those that are here, with this case's batches, and why others are not.

    For labels they write as many tokens as the longest has; CTranslate2 scores them, too.
    """
    racers: dict[str, Racer] = {}
    missing: dict[str, str] = {}
    tokens = case.tokens or _LONGEST

    def add(label: str, module: str, model: Path, python: str = "", **more: object) -> None:
        given = {"batches": case.batches, "model": str(model), "settings": more, "new_tokens": tokens}
        job = run.job(f"bench.peers.{module}.write", Path(), **given)
        racers[label] = Racer(job, python=python)

    if torch_installed():
        run.note_versions("pytorch", ("torch", "transformers"))
        add("pytorch", "pytorch", run.plain())
    else:
        missing["pytorch"] = "PyTorch is not installed (pip install 'edgepeft[train]')"
    for name, packages in _PACKAGES.items():
        model = run.peer(f"text_{name}")
        if isinstance(model, str):
            missing[name] = model
            continue
        python = run.pythons.get(f"text_{name}", "")
        run.note_versions(name, packages, python)
        if name != "ctranslate2":
            add(name, name, model, python)
            continue
        for label, compute, mkl in _CTRANSLATE2:
            add(label, name, model, python, compute_type=compute, mkl=mkl)
            if case.tokens is None:
                more = {"compute_type": compute, "mkl": mkl, "labels": _LABEL_IDS}
                add(f"{label}, scored", name, model, python, **more)
    return racers, missing


_PACKAGES = {
    "optimum": ("optimum-onnx",),
    "openvino": ("openvino", "optimum-intel"),
    "ctranslate2": ("ctranslate2",),
}
_CTRANSLATE2 = (
    ("ctranslate2", "float32", 0),
    ("ctranslate2, MKL", "float32", 1),
    ("ctranslate2 int8", "int8", 0),
    ("ctranslate2 int8, MKL", "int8", 1),
)


def _deltas(run: SuiteRun) -> Iterator[SuiteRow]:
    names = ("lora", "pfeiffer")
    bundle = run.bundle("deltas", [Structure(name, [name], head="text", labels=None) for name in names])
    for case in (_WRITTEN["one-32"], _WRITTEN["eight-8"], _WRITTEN["eight-32"]):
        given = {"batches": case.batches, "new_tokens": case.tokens}
        racers = {name: Racer(run.job(_WRITE, bundle, task=name, **given)) for name in names}
        racers["bare"] = Racer(run.job(_WRITE, bundle, **given))
        raced = run.race(f"deltas, {case.what}", racers)
        for name in names:
            yield ratio_row(f"{name}, fp32, {case.what}", raced, name, "bare", Target(0.95))


def _memory(run: SuiteRun) -> Iterator[SuiteRow]:
    nine = run.bundle("nine", [Structure("pfeiffer", _NINE, head="text", labels=None)])
    one = _resident(run, "one task", _text_of(run, nine, _NINE[:1]))
    all_nine = _resident(run, "nine tasks", _text_of(run, nine, _NINE))
    what = "memory of nine resident Pfeiffer tasks that have written 8 rows each, over that of one"
    yield bytes_row(what, {"nine": all_nine, "one": one}, Target(1.15, at_least=False))
    model = run.peer("text_optimum")
    what = "memory of one task"
    if isinstance(model, str):
        yield SuiteRow(what, "optimum", note=model)
        return
    peers, _ = _peers(run, _WRITTEN["eight-8"])
    theirs = _resident(run, "optimum", peers["optimum"])
    yield bytes_row(f"{what}, over optimum's", {_OWN: one, "optimum": theirs}, peer="optimum")


def _text_of(run: SuiteRun, bundle: Path, tasks: Sequence[str]) -> Racer:
    settings = {"tasks": list(tasks)}
    return Racer(run.job(_WRITE, bundle, batches=_EIGHT, settings=settings, new_tokens=8), range(len(tasks)))


def _resident(run: SuiteRun, label: str, racer: Racer) -> int:
    """Proportional bytes after its steps."""
    with run.worker(label, racer.job, racer.python) as worker:
        for batch in racer.batches:
            run.progress(f"memory of {label}", batch, len(racer.batches))
            worker.step(batch)
        return proportional_bytes(worker.pid)

"""One task's speed: the bare backbone beside other engines, 8-bit weights beside 32-bit, LoRA beside PEFT's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.suites._random_bundle import Structure
from bench.suites._ratio import Races, mean_row, ratio_row
from bench.suites._row import SuiteRow, Target
from bench.suites._suite_run import SETS, Racer, SuiteRun, installed
from edgepeft.bench.planning.job import Batches
from edgepeft.bench.planning.scenario import full_length
from edgepeft.bench.planning.target import torch_installed
from edgepeft.bench.result.rows import flops_per_instance
from edgepeft.bench.workloads.gemm import FLOPS_PER_STEP

__all__ = ["TITLE", "measure"]

TITLE = "The speed of one model"

_OWN = "edgepeft"
_BATCH, _LENGTH = 32, 128
_RANK = 8
_TOKENS = 256  # about a tenth of a second of them is a sample that an interval can be made of


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Full length, real lengths, int8, PEFT."""
    yield from _full_length(run)
    yield from _real_lengths(run)
    yield from _eight_bits(run)
    yield from _peft(run)


def _full_length(run: SuiteRun) -> Iterator[SuiteRow]:
    batches = (full_length(_LENGTH, _BATCH).values,)
    racers, missing = _engines(run, batches)
    if torch_installed():
        bare = run.bundle("bare")
        racers["pytorch"] = Racer(run.job("infer_pytorch", bare, batches=batches))
        racers["torch.compile"] = Racer(run.job("bench.peers.infer_torch_compile", bare, batches=batches))
    raced = run.race("full length", racers)
    what = f"fp32, {_BATCH} rows of {_LENGTH} tokens"
    for peer, target in (("optimum", 1.0), ("openvino", 0.92), ("pytorch", None), ("torch.compile", None)):
        if peer in raced:
            yield ratio_row(what, raced, _OWN, peer, None if target is None else Target(target))
        elif peer in missing:
            yield SuiteRow(what, peer, target=Target(target or 0), note=missing[peer])
    # The yardstick's time for the same work: the ratio of throughputs is then the share of its rate.
    share = len(batches[0]) * flops_per_instance(run.sizes, batches[0]) / FLOPS_PER_STEP
    scaled = {_OWN: raced[_OWN], "gemm": [seconds * share for seconds in raced["gemm"]]}
    yield ratio_row(f"achieved FLOP/s over the host's GEMM rate, {what}", scaled, _OWN, "gemm", Target(0.85))


def _real_lengths(run: SuiteRun) -> Iterator[SuiteRow]:
    races: dict[str, Races] = {}
    missing: Mapping[str, str] = {}
    for name in SETS:
        racers, missing = _engines(run, run.real_batches(name, _BATCH))
        raced = run.race(f"lengths of {name}", racers)
        for peer in sorted(set(racers) - {_OWN}):
            races.setdefault(peer, []).append((raced[_OWN], raced[peer]))
            what = f"fp32, lengths of {name} in order of arrival, batches of {_BATCH}"
            yield ratio_row(what, raced, _OWN, peer, of_totals=True)
    what = f"fp32, real lengths: geometric mean of {', '.join(SETS)}"
    for peer, target in (("optimum", 1.6), ("openvino", 1.45)):
        if peer in races:
            yield mean_row(what, peer, races[peer], Target(target))
        else:
            yield SuiteRow(what, peer, target=Target(target), note=missing[peer])


def _engines(run: SuiteRun, batches: Batches) -> tuple[dict[str, Racer], dict[str, str]]:
    """Ours and the peers that are here, each with these batches; why others are not."""
    own = run.job("infer_onnxruntime", run.bundle("bare"), batches=batches)
    numbers = range(len(batches))
    racers, missing = {_OWN: Racer(own, numbers)}, {}
    for name, workload in (("optimum", "peer"), ("openvino", "bench.peers.infer_openvino")):
        model = run.peer(name)
        if isinstance(model, str):
            missing[name] = model
        else:
            racers[name] = Racer(run.job(workload, Path(), batches=batches, model=str(model)), numbers)
    return racers, missing


def _eight_bits(run: SuiteRun) -> Iterator[SuiteRow]:
    bare, int8 = run.bundle("bare"), run.bundle("int8", weights="int8")
    for rows, tokens in ((8, 128), (1, 32)):
        batches = (full_length(tokens, rows).values,)
        sides = {"int8": int8, "fp32": bare}
        jobs = {name: Racer(run.job("infer_onnxruntime", folder, batches=batches)) for name, folder in sides.items()}
        # A hiccup of the host is most of a step of one short text: more of them.
        raced = run.race(f"int8, {rows} x {tokens}", jobs, rounds=run.rounds * max(1, _TOKENS // (rows * tokens)))
        yield ratio_row(f"int8 weights, {rows} x {tokens} tokens", raced, "int8", "fp32", Target(2.0))


def _peft(run: SuiteRun) -> Iterator[SuiteRow]:
    what, peer = f"LoRA of rank {_RANK}, 8 x {_LENGTH} tokens", "peft on pytorch"
    if not (torch_installed() and installed("peft")):
        yield SuiteRow(what, peer, note="peft is not installed (pip install 'edgepeft[peers]')")
        return
    folder = run.bundle("lora", [Structure("lora", ["lora"], {"rank": str(_RANK)})])
    batches = (full_length(_LENGTH, 8).values,)
    racers = {
        _OWN: Racer(run.job("infer_onnxruntime", folder, batches=batches, task="lora")),
        peer: Racer(run.job("bench.peers.infer_peft", folder, batches=batches, settings={"rank": _RANK})),
    }
    yield ratio_row(what, run.race("PEFT", racers), _OWN, peer)

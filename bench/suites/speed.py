"""One task's speed: the bare backbone beside other engines, 8-bit weights beside 32-bit, LoRA beside PEFT's."""

from __future__ import annotations

from collections.abc import Iterator

from bench.suites._engines import ENGINES, FOR_ONE_TEXT, OWN, racers_of
from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, ratio_row
from bench.suites._suite_run import Racer, SuiteRun, installed
from edgepeft.bench.planning.scenario import full_length
from edgepeft.bench.planning.target import torch_installed
from edgepeft.bench.result.rows import flops_per_instance
from edgepeft.bench.workloads.probes import GEMM_FLOPS

TITLE = "The speed of one model"

_PEERS = tuple(name for name in ENGINES if name not in FOR_ONE_TEXT)
_GOALS = {"optimum": Target(1.0), "openvino": Target(0.92)}
_BATCH, _LENGTH = 32, 128
_RANK = 8
_TOKENS = 256  # about a tenth of a second of them is a sample that an interval can be made of


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Full length, int8, PEFT."""
    yield from _full_length(run)
    yield from _eight_bits(run)
    yield from _peft(run)


def _full_length(run: SuiteRun) -> Iterator[SuiteRow]:
    batches = (full_length(_LENGTH, _BATCH).values,)
    racers, missing = racers_of(run, _PEERS, batches)
    if torch_installed():
        racers["pytorch"] = Racer(run.job("infer_pytorch", run.bundle("bare"), batches=batches))
    raced = run.race("full length", racers)
    what = f"{_BATCH} rows of {_LENGTH} tokens"
    for peer in (*_PEERS, "pytorch"):
        own = ENGINES[peer].own_side if peer in ENGINES else OWN
        if peer in raced:
            yield ratio_row(f"{own}, {what}", raced, own, peer, _GOALS.get(peer))
        elif peer in missing:
            yield SuiteRow(f"{own}, {what}", peer, target=_GOALS.get(peer), note=missing[peer])
    # The yardstick's time for the same work: the ratio of throughputs is then the share of its rate.
    share = len(batches[0]) * flops_per_instance(run.sizes, batches[0]) / GEMM_FLOPS
    scaled = {OWN: raced[OWN], "gemm": [seconds * share for seconds in raced["gemm"]]}
    yield ratio_row(f"achieved FLOP/s over the host's GEMM rate, {what}", scaled, OWN, "gemm", Target(0.85))


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
        OWN: Racer(run.job("infer_onnxruntime", folder, batches=batches, task="lora")),
        peer: Racer(run.job("bench.peers.pytorch.infer_peft", folder, batches=batches, settings={"rank": _RANK})),
    }
    yield ratio_row(what, run.race("PEFT", racers), OWN, peer)

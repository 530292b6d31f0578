"""A step of fine-tuning beside PyTorch's: without padding, on real lengths, over 8-bit weights; its memory."""

from __future__ import annotations

from collections.abc import Iterator

from bench.suites._random_bundle import Structure
from bench.suites._result import Races, SuiteRow, Target, bytes_row, mean_row, ratio_row
from bench.suites._suite_run import SETS, Racer, SuiteRun
from edgepeft.bench.planning.job import Batches
from edgepeft.bench.planning.scenario import full_length
from edgepeft.bench.planning.target import torch_installed
from edgepeft.common.errors import MissingPackage

TITLE = "A step of fine-tuning"

_OWN, _INT8, _BITFIT, _PYTORCH, _COMPILED, _FULL = "edgepeft", "int8", "bitfit", "pytorch", "torch.compile", "full"
_OVER = {_OWN: "", _INT8: " over int8 weights"}
_METHODS = [Structure("pfeiffer", ["pfeiffer"]), Structure("bitfit", ["bitfit"])]
_NO_PADDING = (8, 64)
_ROWS = 16  # of a step on real lengths


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Pfeiffer's adapters: speed and memory, in float32 and over int8; BitFit."""
    if not torch_installed():
        raise MissingPackage("a step beside PyTorch's needs PyTorch: pip install 'edgepeft[train]'.")
    yield from _no_padding(run)
    yield from _real_lengths(run)


def _no_padding(run: SuiteRun) -> Iterator[SuiteRow]:
    rows, tokens = _NO_PADDING
    batches = (full_length(tokens, rows).values,)
    racers = _racers(run, batches)
    bundle = run.bundle("methods", _METHODS)
    racers[_BITFIT] = _racer(run, "finetune_onnxruntime", "methods", batches, "bitfit")
    racers[_COMPILED] = _racer(run, "bench.peers.pytorch.finetune_compiled", "methods", batches, "pfeiffer")
    racers[_FULL] = Racer(run.job("finetune_pytorch", bundle, batches=batches, method="full"))
    raced = run.race("no padding", racers)
    what = f"{rows} x {tokens} tokens, no padding: pfeiffer"
    yield ratio_row(what, raced, _OWN, _PYTORCH, Target(1.0))
    for peer in (_COMPILED, _FULL):
        yield ratio_row(what, raced, _OWN, peer)
    yield ratio_row(f"{what}{_OVER[_INT8]}", raced, _INT8, _PYTORCH, Target(2.4))
    yield ratio_row(f"{rows} x {tokens} tokens, no padding: bitfit", raced, _BITFIT, _OWN, Target(1.0))
    for own, most in ((_OWN, 0.6), (_INT8, 0.42)) if run.peaks else ():
        name, peaks = f"peak memory, {what}{_OVER[own]}", {side: run.peaks[side] for side in (own, _PYTORCH)}
        yield bytes_row(name, peaks, Target(most, at_least=False), peer=_PYTORCH, unit="share")


def _real_lengths(run: SuiteRun) -> Iterator[SuiteRow]:
    races: dict[str, Races] = {_OWN: [], _INT8: []}
    for name in SETS:
        raced = run.race(f"lengths of {name}", _racers(run, run.real_batches(name, _ROWS)))
        for own, pairs in races.items():
            pairs.append((raced[own], raced[_PYTORCH]))
            what = f"{_ROWS} rows of {name}'s lengths: pfeiffer{_OVER[own]}"
            yield ratio_row(what, raced, own, _PYTORCH, of_totals=True)
    for own, least in ((_OWN, 1.4), (_INT8, 3.2)):
        what = f"real lengths: pfeiffer{_OVER[own]}, geometric mean of {', '.join(SETS)}"
        yield mean_row(what, _PYTORCH, races[own], Target(least))


def _racers(run: SuiteRun, batches: Batches) -> dict[str, Racer]:
    """Ours in float32 and over int8, and PyTorch's padded step, each with these batches."""
    run.bundle("methods", _METHODS)
    run.bundle("methods-int8", _METHODS, weights="int8")
    return {
        _OWN: _racer(run, "finetune_onnxruntime", "methods", batches, "pfeiffer"),
        _INT8: _racer(run, "finetune_onnxruntime", "methods-int8", batches, "pfeiffer"),
        _PYTORCH: _racer(run, "finetune_pytorch", "methods", batches, "pfeiffer"),
    }


def _racer(run: SuiteRun, workload: str, bundle: str, batches: Batches, method: str) -> Racer:
    job = run.job(workload, run.bundle(bundle), batches=batches, task=method, method=method)
    return Racer(job, range(len(batches)))

"""A task of each kind beside optimum's export of transformers' class for it, both by ONNX Runtime, on real lengths.

Ours is a fresh LoRA, which changes nothing and costs what a trained one does: so both sides give the same values, which
is looked at before anything is timed.  A step is a batch of token rows to logits, or to vectors of length 1: windows of
passages and candidates are rows that are there already; what makes answers of logits is left out on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.peers.optimum_kinds import KINDS, values_of
from bench.suites._random_bundle import Structure
from bench.suites._result import Races, SuiteRow, Target, mean_row, ratio_row, require_close
from bench.suites._suite_run import SETS, Racer, SuiteRun
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import plain_session
from edgepeft.tasks.base import kind_named

TITLE = "Every kind of task"
CASES = tuple(KINDS)

_OWN, _PEER = "edgepeft", "optimum"
_BATCH = 32
_LABELS = {"tokens": ("B-X", "I-X", "B-Y", "I-Y", "O"), "labels": tuple("abcdef")}
_GOAL = Target(1.6)


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Each kind on each set of lengths, their mean, and that of all kinds."""
    every: Races = []
    for kind in run.cases or CASES:
        model = run.peer("optimum_kinds", of=_bundle(run), task=kind)
        if isinstance(model, str):
            yield SuiteRow(kind, _PEER, note=model)
            continue
        run.note_versions(_PEER, ("optimum-onnx",))
        apart, races = _apart(run, kind, model), Races()
        of_set = [run.real_batches(name, _BATCH) for name in SETS]
        # Round k has the k-th batch of each set.
        turns = tuple(batches[k % len(batches)] for k in range(run.rounds) for batches in of_set)
        own = run.job("infer_onnxruntime", _bundle(run), batches=turns, task=kind)
        peer = run.job("bench.peers.optimum_kinds.infer", Path(), batches=turns, model=str(model), kind=kind)
        racers = {side: Racer(job, range(len(turns))) for side, job in ((_OWN, own), (_PEER, peer))}
        both = run.race(kind, racers, rounds=len(turns), warmup=len(SETS), together=len(SETS))
        for place, name in enumerate(SETS):
            raced = {side: both[side][place :: len(SETS)] for side in (_OWN, _PEER)}
            races.append((raced[_OWN], raced[_PEER]))
            what = f"{kind}, lengths of {name}, batches of {_BATCH}"
            note = f"values of the two are {apart:.1e} apart at most"
            yield ratio_row(what, raced, _OWN, _PEER, of_totals=True, note=note)
        every += races
        yield mean_row(f"{kind}: geometric mean of {', '.join(SETS)}", _PEER, races)
    if every:
        yield mean_row(f"geometric mean of {len(every) // len(SETS)} kinds", _PEER, every, _GOAL)


def _bundle(run: SuiteRun) -> Path:
    """A task of each kind, called like it."""
    structures = []
    for kind in CASES:
        _, labels = kind_named(kind).example(_LABELS.get(kind))
        structures.append(Structure("lora", [kind], {"rank": "8"}, labels=labels, kind=kind))
    return run.bundle("kinds", structures)


def _apart(run: SuiteRun, kind: str, model: Path) -> float:
    """The largest difference of the two sides' values on a batch of each set."""
    theirs, found = plain_session(model, run.threads), [0.0]
    with Runtime(_bundle(run), threads=run.threads) as runtime:
        for name in SETS:
            inputs = run.job("", Path(), batches=run.real_batches(name, _BATCH)).batch(0)
            own, other = runtime.logits(kind, inputs), values_of(theirs, kind, inputs)
            read = inputs["attention_mask"] != 0 if own.ndim > 2 else ...
            found.append(float(np.abs(own - other)[read].max()))
    require_close(f"a task of kind {kind}", _PEER, max(found))
    return max(found)

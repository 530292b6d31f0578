"""A family's bare model beside its export, both by ONNX Runtime: real lengths, and one long text where it takes one.

    python -m bench.suites families --profile rpi4 --backbone deberta-v3-base

Hidden states of the two are compared before anything is timed.  The export is optimum's; where optimum makes none,
PyTorch's own exporter stands for what is left to a user, and every row says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.suites._result import Races, SuiteRow, Target, mean_row, ratio_row, require_close
from bench.suites._suite_run import SETS, Racer, SuiteRun
from edgepeft.bench.planning.job import Batches
from edgepeft.bench.planning.scenario import full_length
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import plain_session

TITLE = "The speed of a family"
ARCHITECTURE = "modernbert-base"

_OWN, _PEERS = "edgepeft", ("optimum", "torch_onnx")
_BATCH, _LONG = 32, 4096
_GOALS = {"modernbert": Target(1.6), "deberta-v2": Target(2.0), "mpnet": Target(1.9)}  # on real lengths, by model type
_LONG_GOAL = Target(1.3)


class _Export(NamedTuple):
    """Whose it is, where, and why none that comes before it is there."""

    peer: str
    model: Path
    note: str


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Each set of lengths, their mean, the long text."""
    found = _export(run)
    if isinstance(found, str):
        yield SuiteRow("fp32", _PEERS[0], target=_GOALS.get(run.sizes.model_type), note=found)
        return
    races: Races = []
    for name in SETS:
        what = f"fp32, lengths of {name}, batches of {_BATCH}"
        raced, note = _raced(run, found, what, run.real_batches(name, _BATCH))
        races.append((raced[_OWN], raced[found.peer]))
        yield ratio_row(what, raced, _OWN, found.peer, of_totals=True, note=note)
    what = f"fp32, real lengths: geometric mean of {', '.join(SETS)}"
    yield mean_row(what, found.peer, races, _GOALS.get(run.sizes.model_type))
    if run.sizes.max_length >= _LONG:
        what = f"fp32, one row of {_LONG} tokens"
        raced, note = _raced(run, found, what, (full_length(_LONG, 1).values,))
        yield ratio_row(what, raced, _OWN, found.peer, _LONG_GOAL, note=note)


def _export(run: SuiteRun) -> _Export | str:
    """The first peer's that there is; why there is none."""
    reasons: list[str] = []
    for peer in _PEERS:
        model = run.peer(peer)
        if isinstance(model, Path):
            return _Export(peer, model, "".join(f"{reason}; " for reason in reasons))
        reasons.append(model)
    return "; ".join(reasons)


def _raced(run: SuiteRun, found: _Export, what: str, batches: Batches) -> tuple[dict[str, list[float]], str]:
    """Seconds of each side, and what is to be said of the pair."""
    apart, numbers = _apart(run, found, batches), range(len(batches))
    own = run.job("infer_onnxruntime", run.bundle("bare"), batches=batches)
    peer = run.job("peer", Path(), batches=batches, model=str(found.model))
    raced = run.race(what, {_OWN: Racer(own, numbers), found.peer: Racer(peer, numbers)}, warmup=min(2, len(batches)))
    return raced, f"{found.note}hidden states of the two are {apart:.1e} apart at most"


def _apart(run: SuiteRun, found: _Export, batches: Batches) -> float:
    """The largest difference of a real token's hidden states, of the first batch."""
    inputs, theirs = run.job("", Path(), batches=batches).batch(0), plain_session(found.model, run.threads)
    with Runtime(run.bundle("bare"), threads=run.threads) as runtime:
        own = runtime.last_hidden_state(inputs)
    given = {each.name: inputs[each.name] for each in theirs.get_inputs()}
    other = np.asarray(theirs.run(["last_hidden_state"], given)[0])
    apart = float(np.abs(own - other)[inputs["attention_mask"] != 0].max())
    require_close(run.architecture, found.peer, apart, float(np.abs(own).max()))
    return apart

"""One text at a time, as a board answers: the bare backbone beside the exports that people use, in 32 and in 8 bits.

Our side is the runtime from token ids to hidden states, its Python included; a peer's is its bare session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.suites._ratio import ratio_row, require_close
from bench.suites._row import SuiteRow, Target
from bench.suites._suite_run import Racer, SuiteRun
from edgepeft.bench.planning.job import Batches
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import plain_session

__all__ = ["ARCHITECTURE", "TITLE", "measure"]

TITLE = "One text at a time"
ARCHITECTURE = "all-MiniLM-L6-v2"

_OWN, _OWN_INT8 = "edgepeft", "edgepeft int8"
_LENGTHS = (8, 16, 32, 64, 128)
# Each peer's module, the argument of its export and the goals by length; the first ones run in float32.
_FP32 = {
    "optimum": ("optimum", "", (1.06, 1.08, 1.06, 1.05, 1.06)),
    "optimum O3": ("optimum_o3", "", (1.1, 1.1, 1.15, 1.18, 1.2)),
    "openvino": ("openvino", "", (1.0, 1.0, 1.0, 1.0, 1.0)),
}
_INT8 = {
    "dynamic int8": ("dynamic_int8", "", (1.1, 1.15, 1.2, 1.2, 1.2)),
    "dynamic int8 by channel": ("dynamic_int8", "channel", (1.3, 1.2, 1.2, 1.2, 1.2)),
}


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Every length, beside each peer in 32 and in 8 bits.

    Raises:
        EdgepeftError: ours and optimum's export do not give the same values.
    """
    own = {_OWN: run.bundle("bare"), _OWN_INT8: run.bundle("int8", weights="int8")}
    peers = {name: run.peer(module, task=argument) for name, (module, argument, _) in (_FP32 | _INT8).items()}
    for name, model in peers.items():
        if isinstance(model, str):
            yield SuiteRow("a text", name, note=model)
    found = {name: model for name, model in peers.items() if isinstance(model, Path)}
    notes = _notes(run, own, found)
    for place, length in enumerate(_LENGTHS):
        batches: Batches = ((length,),)
        racers = {name: Racer(run.job("infer_onnxruntime", folder, batches=batches)) for name, folder in own.items()}
        for name, model in found.items():
            workload = "bench.peers.infer_openvino" if name == "openvino" else "peer"
            racers[name] = Racer(run.job(workload, Path(), batches=batches, model=str(model)))
        # A hiccup of the host is most of a short text's time: more of them.
        raced = run.race(f"a text of {length} tokens", racers, rounds=run.rounds * max(1, 256 // length), warmup=5)
        for side, of_side in ((_OWN, _FP32), (_OWN_INT8, _INT8)):
            for name, (*_, goals) in of_side.items():
                what = f"{side}, a text of {length} tokens"
                if name in found:
                    yield ratio_row(
                        what, raced, side, name, Target(goals[place]), note="" if place else notes.get(name, "")
                    )


def _notes(run: SuiteRun, own: dict[str, Path], found: dict[str, Path]) -> dict[str, str]:
    """How far ours and a peer's 8 bits are from float32, once the float32 sides are seen to be one model."""
    inputs = run.job("", Path(), batches=((64,),)).batch(0)

    def ours(name: str) -> np.ndarray:
        with Runtime(own[name], threads=run.threads) as runtime:
            return runtime.last_hidden_state(inputs)

    def theirs(name: str) -> np.ndarray:
        session = plain_session(found[name], run.threads)
        return np.asarray(session.run(["last_hidden_state"], {i.name: inputs[i.name] for i in session.get_inputs()})[0])

    exact = ours(_OWN)
    if "optimum" in found:
        require_close("the bare backbone", "optimum", float(np.abs(exact - theirs("optimum")).max()))
    off = float(np.abs(exact - ours(_OWN_INT8)).max())
    return {
        name: f"in 8 bits hidden states of 64 tokens are off by {off:.3f} at most, {name}'s by "
        f"{np.abs(exact - theirs(name)).max():.3f}"
        for name in _INT8.keys() & found.keys()
    }

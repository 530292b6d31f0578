"""One text at a time, as a board answers: the bare backbone beside the exports that people use, in 32 and in 8 bits.

Our side is the runtime from token ids to hidden states, its Python included; a peer's is its bare session.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from bench.suites._engines import ENGINES, racers_of
from bench.suites._result import SuiteRow, Target, ratio_row, require_close
from bench.suites._suite_run import SuiteRun
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import plain_session

TITLE = "One text at a time"
ARCHITECTURE = "all-MiniLM-L6-v2"

_WARM, _COLD = " after another", ""  # the second of a turn, the first, whose caches the others have filled
_LENGTHS = (8, 16, 32, 64, 128)
# Goals by length, of MiniLM's shape; where none is named, the goal is not to lose.
_GOALS = {
    "optimum": (1.06, 1.08, 1.06, 1.05, 1.06),
    "optimum O3": (1.1, 1.1, 1.15, 1.18, 1.2),
    "dynamic int8": (1.1, 1.15, 1.2, 1.2, 1.2),
    "dynamic int8 by channel": (1.3, 1.2, 1.2, 1.2, 1.2),
}
# torch.compile writes code for each length by itself, in half a minute: it is in the suite batches.
_PEERS = tuple(name for name in ENGINES if name != "torch.compile")


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Every length, beside each peer in 32 and in 8 bits."""
    goals = _GOALS if run.architecture == ARCHITECTURE else {}
    # A hiccup of the host is most of a short text's time: more of them.  Lengths take turns, some texts of each.
    some = [place for place, length in enumerate(_LENGTHS) for _ in range(max(1, 64 // length))]
    turns = some * (4 * run.rounds)
    racers, missing = racers_of(run, _PEERS, tuple((length,) for length in _LENGTHS), turns)
    for name, reason in missing.items():
        yield SuiteRow("a text", name, note=reason)
    notes = _notes(run, {name: Path(str(racer.job.model)) for name, racer in racers.items() if racer.job.model})
    raced = run.race("one text", racers, rounds=len(turns), warmup=2 * len(some), together=len(some), twice=True)
    for (place, length), (form, sides), name in product(
        enumerate(_LENGTHS), ((_WARM, run.again), (_COLD, raced)), _PEERS
    ):
        if name in missing:
            continue
        own, goal = ENGINES[name].own_side, goals[name][place] if name in goals else 1.0
        what, note = f"{own}, a text of {length} tokens{form}", notes.pop(name, "")
        at = [turn for turn, number in enumerate(turns[: len(raced[own])]) if number == place]
        seconds = {side: [sides[side][turn] for turn in at] for side in (own, name)}
        yield ratio_row(what, seconds, own, name, Target(goal), note=note)


def _notes(run: SuiteRun, found: dict[str, Path]) -> dict[str, str]:
    """How far ours and a peer's 8 bits are from float32, once the float32 sides are seen to be one model."""
    inputs = run.job("", Path(), batches=((64,),)).batch(0)

    def ours(bundle: Path) -> np.ndarray:
        with Runtime(bundle, threads=run.threads) as runtime:
            return runtime.last_hidden_state(inputs)

    def theirs(name: str) -> np.ndarray:
        session = plain_session(found[name], run.threads)
        return np.asarray(session.run(["last_hidden_state"], {i.name: inputs[i.name] for i in session.get_inputs()})[0])

    exact = ours(run.bundle("bare"))
    if "optimum" in found:
        apart, largest = np.abs(exact - theirs("optimum")).max(), np.abs(exact).max()
        require_close("the bare backbone", "optimum", float(apart), float(largest))
    off = float(np.abs(exact - ours(run.bundle("int8", weights="int8"))).max())
    return {
        name: f"in 8 bits hidden states of 64 tokens are off by {off:.3f} at most, {name}'s by "
        f"{np.abs(exact - theirs(name)).max():.3f}"
        for name, engine in ENGINES.items()
        if engine.int8 and engine.workload == "peer" and name in found
    }

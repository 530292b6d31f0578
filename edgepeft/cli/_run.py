"""What the verbs that learn share: notes on their results, and a stop that leaves a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from edgepeft.cli._output import INTERRUPTED
from edgepeft.common.progress import messages, say

if TYPE_CHECKING:
    from edgepeft.data.training_loop.run import TrainingLoopResult

__all__ = ["interruptible", "say_temperature", "say_unbeaten", "say_windows"]

_HIGHER = 3  # times the rate: at ten times it LoRA and Compacter lose 5 to 78 points (docs/methods.md)


def say_windows(result: TrainingLoopResult) -> None:
    """What reading long texts in windows cost, and how their logits are pooled."""
    from edgepeft.data.row_grouping import Spread

    told = dict(result.training.get("windows", {}))
    if not told:
        return
    pools = told.pop("pools", {})
    scores = ", ".join(f"{name} {score:.4f}" for name, score in pools.items())
    how = f" Their logits' {result.chosen['pool']} answers (eval rows: {scores})." if pools else ""
    say(f"note: read in windows: {Spread(**told)}.{how}")


def say_temperature(result: TrainingLoopResult) -> None:
    """Where the evaluation rows cannot say how sure answers are."""
    bound = result.chosen.get("temperature_bound")
    if bound is not None:
        why = (
            "almost all of them are right, and cannot say how sure an answer may be; it stays 1"
            if bound < 1
            else "what is more probable is not more often right"
        )
        say(f"note: the evaluation rows are likeliest at a temperature of {bound:g}, the last looked at: {why}.")


def say_unbeaten(result: TrainingLoopResult, other: str) -> None:
    """What the delta is not better than beyond chance, and what to try; ``other`` is an option for another method."""
    from edgepeft.data.training_loop.baselines import LINEAR, MAJORITY, unbeaten, undecidable

    found = dict(unbeaten(result.metrics))
    option, key = (
        ("--lr", "learning_rate")
        if {*result.metrics["baselines"]} - {MAJORITY}
        else ("--head-lr", "head_learning_rate")
    )
    rate = result.training[key]
    for sentence in found.values():
        say(f"note: {sentence}.")
    if found and undecidable(result.metrics):
        messages().print("so few test rows differ that they cannot tell; give more to --test.")
    elif found:
        has_head = any(name.startswith("head/") for name in result.tensors)  # labels that a decoder scores have none
        linear = LINEAR in found and has_head
        cheap = "; --method linear gives that head, and all its tasks answer from one run" if linear else ""
        say(f"try {option} {_HIGHER * rate:.3g} (this was {rate:.3g}), more --epochs, more rows, {other}{cheap}.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Train or tune within the block; a run that was stopped says how to go on, and exits with 130."""
    from edgepeft.data.training_loop.run import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        messages().print(f"{interrupted}. The same command with --resume (without --force) continues.")
        raise typer.Exit(INTERRUPTED) from None

"""What the verbs that learn share: threads, a progress bar, and a stop that leaves a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.progress import TextColumn, TimeRemainingColumn

from edgepeft.cli._output import INTERRUPTED, bars, messages, say

if TYPE_CHECKING:
    from edgepeft.data.training_loop.run import Progress, TrainingLoopResult

__all__ = ["interruptible", "say_temperature", "say_unbeaten", "say_windows", "use_threads"]

_HIGHER = 3  # times the rate: at ten times it LoRA and Compacter lose 5 to 78 points (docs/methods.md)


def use_threads(threads: int | None) -> None:
    """Let PyTorch take so many threads, or as many as there are cores in force."""
    import torch

    from edgepeft.device.host.machine import thread_count

    torch.set_num_threads(threads or thread_count())


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
def interruptible(task: str) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
    """Yields what a run reports its progress to, and what says whether to stop; a run that stopped exits with 130."""
    from edgepeft.data.training_loop.run import Interrupted

    try:
        with progress_bar(task) as watch, stopping() as stop:
            yield watch, stop
    except Interrupted as interrupted:
        messages().print(f"{interrupted}. The same command with --resume (without --force) continues.")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C or SIGTERM came; a second one interrupts at once.

    In a thread of a program that calls us, signals are the program's.
    """
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        restore()


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[Progress], None]]:
    """A progress bar with loss and metric; yields what a run reports to."""
    with bars(TimeRemainingColumn(), TextColumn("{task.fields[state]}", markup=False)) as shown:
        bar = shown.add_task(f"{task}: loading", total=None, state="")

        def watch(progress: Progress) -> None:
            known: dict[str, float | None] = {"loss": progress.loss, "eval": progress.score, "best": progress.best}
            state = "  ".join(f"{name} {value:.3f}" for name, value in known.items() if value is not None)
            what = f"{task}: {progress.phase}"
            shown.update(bar, description=what, completed=progress.done, total=progress.total, state=state)

        yield watch

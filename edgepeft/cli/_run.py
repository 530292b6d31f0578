"""What the verbs that learn share: a progress bar, and a stop that leaves a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from edgepeft.cli._output import messages

__all__ = ["progress_bar", "stopping"]


class Report(Protocol):
    """What a run says of itself."""

    @property
    def phase(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def best(self) -> float | None: ...


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C or SIGTERM came; a second one interrupts at once."""
    asked = False
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
def progress_bar(task: str) -> Iterator[Callable[[Report], None]]:
    """A progress bar with loss and metric; yields what the run tells."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[state]}", markup=False), console=messages()) as bars:
        bar = bars.add_task(f"{task}: loading", total=None, state="")

        def watch(progress: Report) -> None:
            bars.update(
                bar,
                description=f"{task}: {progress.phase}",
                completed=progress.done,
                total=progress.total,
                state=_state(progress),
            )

        yield watch


def _state(progress: Report) -> str:
    known: dict[str, Any] = {"loss": progress.loss, "eval": progress.score, "best": progress.best}
    return "  ".join(f"{name} {value:.3f}" for name, value in known.items() if value is not None)

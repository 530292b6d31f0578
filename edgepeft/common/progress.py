"""How far long work is: bars on a terminal or in a notebook, a line every ten seconds where none is drawn; and a stop.

All of it is on standard error.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from time import monotonic
from types import FrameType
from typing import Any

from rich import progress as rich
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from edgepeft.common.messages import printable

Stage = Callable[[str], AbstractContextManager[object]]
"""Entered around each step of some work, with the step's name."""

EVERY_S = 10.0  # a line, where no bar is drawn
_LINES = 5  # bars that it tells of

_shown: list[rich.Progress] = []  # that are under way, the last one within the others
_ends: list[threading.Event] = []  # of the thread that says what is under way; one at most


class PrintableConsole(Console):
    """Shows text from bundles and data without the control characters in it; rich lets some of them through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments, escaped but for rich's own control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def messages() -> Console:
    """Messages and progress; standard error, so that standard output stays the result's."""
    console = PrintableConsole(stderr=True, highlight=False)
    # Who reads a log or a pipe looks for lines, and rich would break them at 80.
    console.soft_wrap = not (console.is_terminal or console.is_jupyter)
    return console


@contextlib.contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """Say every ten seconds on standard error what is under way, unless a terminal's bar does; no bar: ``what``."""
    if _ends:  # a surrounding one says it
        yield
        return
    begin, over = monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(EVERY_S):
            if all(each.disable for each in _shown):
                line = f"{_under_way() or what}, {monotonic() - begin:.0f} s"
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    print(printable(line), file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    _ends.append(over)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _ends.remove(over)
        thread.join()


def say(line: str) -> None:
    """Print a line on standard error, above a bar that is drawn; it is lost where that is a full disk."""
    console = _shown[-1].console if _shown else messages()
    with contextlib.suppress(OSError):
        console.print(line, markup=False, soft_wrap=True)


def no_longer() -> None:
    """Say nothing any more: from here on the work is to wait."""
    for over in _ends:
        over.set()


def _under_way() -> str:
    """The bars that are being filled: what, how many of how many, and their state."""
    filled = next((bars for shown in reversed(_shown) if (bars := [b for b in shown.tasks if not b.finished])), [])
    told = []
    for bar in filled[:_LINES]:
        total = "" if bar.total is None else f" of {bar.total:,.0f}"
        count = f"{bar.completed:,.0f}{total}" if total or bar.completed else ""
        left = about(bar.fields.get("left", bar.time_remaining))
        told.append(", ".join(part for part in (bar.description, count, bar.fields.get("state", ""), left) if part))
    return "; ".join([*told, f"and {len(filled) - _LINES} more"] if len(filled) > _LINES else told)


def about(seconds: float | None) -> str:
    """How long work may still take; nothing where nobody knows."""
    if seconds is None:
        return ""
    return f"about {seconds / 60:.0f} min left" if seconds >= 120 else f"about {seconds:.0f} s left"


@contextlib.contextmanager
def bars(*columns: rich.ProgressColumn, **options: Any) -> Iterator[rich.Progress]:
    """Progress bars on standard error: a description, the bar, how many of how many, and ``columns``; then gone."""
    console = messages()
    first = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn())
    # A notebook without what rich draws with gets lines.
    draws = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    drawn = rich.Progress(*first, *columns, console=console, transient=True, disable=not draws, **options)
    with heartbeat("working"), drawn:
        _shown.append(drawn)
        try:
            yield drawn
        finally:
            _shown.remove(drawn)


@contextlib.contextmanager
def stages(total: int | None) -> Iterator[Stage]:
    """A progress bar over ``total`` named steps, None where nobody knows; yields what is entered around each."""
    with bars(rich.TimeElapsedColumn(), rich.SpinnerColumn()) as progress:
        bar = progress.add_task("", total=total)

        @contextlib.contextmanager
        def stage(name: str) -> Iterator[None]:
            progress.update(bar, description=name)
            yield
            progress.advance(bar)

        yield stage


@contextlib.contextmanager
def shown_steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on standard error; the callback takes what is being done, how many are done, and of how many."""
    # Redrawn when a step ends: a redrawing thread would take time from what is measured.
    with bars(rich.TimeElapsedColumn(), auto_refresh=False) as bar:
        current = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(current, description=what, completed=done, total=total, refresh=True)


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], int]]:
    """Yields a function that says which of SIGINT (Ctrl-C) and SIGTERM came, or 0; a second one interrupts at once.

    In a thread of a program that calls us, signals are the program's.
    """
    asked = 0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = number
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        restore()

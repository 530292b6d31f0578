"""What long work shows: bars on a terminal or in a notebook, and a line every ten seconds where none is drawn."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from edgepeft.cli._output import messages
from edgepeft.common.messages import printable

__all__ = ["bars", "no_longer", "say", "shown_steps", "signs_of_life", "stages"]

EVERY_S = 10.0

_shown: list[Progress] = []  # that are under way, the last one within the others
_ends: list[threading.Event] = []  # of the thread that says what is under way; one at most


@contextlib.contextmanager
def signs_of_life(what: str) -> Iterator[None]:
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
    """Print a line on standard error, above a bar that is drawn."""
    console = _shown[-1].console if _shown else messages()
    console.print(line, markup=False, soft_wrap=True)


def no_longer() -> None:
    """Say nothing any more: from here on the work is to wait."""
    for over in _ends:
        over.set()


def _under_way() -> str:
    """The bar that is being filled: what, how many of how many, and its state."""
    for each in [bar for shown in reversed(_shown) for bar in shown.tasks if not bar.finished]:
        total = "" if each.total is None else f" of {each.total:,.0f}"
        count = f"{each.completed:,.0f}{total}" if total or each.completed else ""
        return ", ".join(part for part in (each.description, count, each.fields.get("state", "")) if part)
    return ""


def _draws(console: Console) -> bool:
    """Whether it is a terminal, or a notebook that has what rich draws with; another notebook gets the lines."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextlib.contextmanager
def bars(*columns: ProgressColumn, console: Console | None = None, **options: Any) -> Iterator[Progress]:
    """Progress bars on standard error: a description, the bar, how many of how many, and ``columns``; then gone."""
    console = console or messages()
    first = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    drawn = Progress(*first, *columns, console=console, transient=True, disable=not _draws(console), **options)
    with signs_of_life("working"), drawn:
        _shown.append(drawn)
        try:
            yield drawn
        finally:
            _shown.remove(drawn)


@contextlib.contextmanager
def stages(total: int | None) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """A progress bar over ``total`` named steps, None where nobody knows; yields what is entered around each."""
    with bars(TimeElapsedColumn(), SpinnerColumn()) as progress:
        bar: TaskID = progress.add_task("", total=total)

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
    with bars(TimeElapsedColumn(), auto_refresh=False) as bar:
        current = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(current, description=what, completed=done, total=total, refresh=True)

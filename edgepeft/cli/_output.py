"""Output of the verbs: documents to standard output, messages and progress to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

__all__ = ["INTERRUPTED", "bars", "json_text", "messages", "print_json", "stages", "table_console", "table_of"]

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_WIDTH = 120


def messages() -> Console:
    """Messages and progress; standard error, so that standard output stays the result's."""
    return Console(stderr=True, highlight=False)


def table_console() -> Console:
    """Tables, on standard output."""
    console = Console(highlight=False)
    # A file or a log has no width, and rich would take 80.
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def table_of(
    *headers: str | Column, numbers: Iterable[str] = (), title: str | None = None, centred: bool = False
) -> Table:
    """A table with a rule below its head; ``numbers`` name further columns, aligned to the right."""
    columns = [*headers, *(Column(name, justify="right") for name in numbers)]
    shown = None if title is None else Text(title)
    return Table(*columns, title=shown, title_justify="center" if centred else "left", box=box.SIMPLE_HEAD)


def bars(*columns: ProgressColumn, **options: Any) -> Progress:
    """Progress bars on standard error: a description, the bar, how many of how many, and ``columns``."""
    first = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*first, *columns, console=messages(), **options)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json_text(document, indent=2))


def json_text(document: Any, indent: int | None = None) -> str:
    """JSON with every character as it is, or escaped where standard output has no encoding for one."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")  # it may be closed, or a test's
    except UnicodeEncodeError:
        return json.dumps(document, indent=indent)
    return text


@contextlib.contextmanager
def stages(total: int) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """A progress bar over ``total`` named steps; yields what is entered around each."""
    console = messages()
    with bars(TimeElapsedColumn(), SpinnerColumn(), transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)

        @contextlib.contextmanager
        def stage(name: str) -> Iterator[None]:
            progress.update(bar, description=name)
            yield
            progress.advance(bar)

        yield stage

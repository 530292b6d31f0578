"""Output of the verbs: documents to standard output, messages and progress to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["json_text", "messages", "print_json", "stages", "table_console"]

_WIDTH = 120


def messages() -> Console:
    """Messages and progress; standard error, so that standard output stays the result's."""
    return Console(stderr=True, highlight=False)


def table_console() -> Console:
    """Tables, on standard output."""
    console = Console(highlight=False)
    # A file or a log has no width, and rich would take 80.
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


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
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = messages()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)

        @contextlib.contextmanager
        def stage(name: str) -> Iterator[None]:
            progress.update(bar, description=name)
            yield
            progress.advance(bar)

        yield stage

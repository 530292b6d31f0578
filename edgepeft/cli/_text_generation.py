"""What verbs share of text that is written: how much of it, what was cut, and how it is shown while it comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from edgepeft.cli._output import messages
from edgepeft.common.errors import UsageError
from edgepeft.common.messages import printable

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.data.rows import Row
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

__all__ = ["decoding_of", "print_as_written", "say_cuts", "written"]


def decoding_of(bundle: Bundle, task: str | None, beams: int | None, max_new_tokens: int | None) -> Decoding:
    """How a task's texts are written, greedily if nothing is given.

    Raises:
        UsageError: something is given, and the task writes none.
    """
    from edgepeft.runtime.decoding import Decoding

    asked = {"beams": beams, "max_new_tokens": max_new_tokens}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if given and (task is None or not bundle.entry(task).writes):
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} is for a task that writes text; --task names one that does.")
    return Decoding(**given)


def written(decoding: Decoding | None) -> str:
    """Behind the sizes of what is read."""
    if decoding is None:
        return ""
    beams = "" if decoding.beams == 1 else f" by {decoding.beams} beams"
    return f" and {decoding.max_new_tokens} written{beams}"


def print_as_written(runtime: Runtime, tasks: list[str], rows: Iterable[Row], decoding: Decoding) -> None:
    """Print the text of each row piece by piece, as its tokens come, and a line's end.

    Raises:
        UsageError: not one task that writes text, or several beams.
    """
    if len(tasks) != 1 or not runtime.bundle.entry(tasks[0]).writes:
        raise UsageError(f"--stream shows what one task writes, found {', '.join(tasks)}; --task names one that does.")
    for row in rows:
        for piece in runtime.stream(tasks[0], row.readable, decoding):
            typer.echo(printable(piece), nl=False)  # flushed at once
        typer.echo()


def say_cuts(runtime: Runtime, decoding: Decoding) -> None:
    """Say how many texts were cut or read in windows, and how many not written to their ends."""
    if runtime.truncation.rows:
        messages().print(f"{runtime.truncation.rows} answer(s) read a text cut to the task's maximal length.")
    if runtime.truncation.windows.texts:
        messages().print(f"read in windows: {runtime.truncation.windows}.")
    if runtime.truncation.texts:
        messages().print(f"{runtime.truncation.texts} text(s) were cut at {decoding.max_new_tokens} tokens.")

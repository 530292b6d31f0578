"""One request's rows on their way through the batches, and how its answers come back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepeft.runtime.inputs import Readable
from edgepeft.runtime.prediction import RowResult


@dataclass(eq=False)
class Job:
    """One request's rows; compared by identity."""

    tasks: Sequence[str | None]
    texts: Sequence[Readable]
    client: Hashable
    arrived: float
    future: asyncio.Future[Sequence[RowResult]]
    tell: Callable[[str], object] | None = None  # has each piece of a text, in the event loop
    most: int | None = None  # tokens of a text
    schema: Mapping[str, Any] | None = None  # to which a text keeps
    told: bool = False  # a piece, so that it can no longer begin anew
    given: bool = False

    @property
    def left(self) -> bool:
        """Whether somebody still waits for it and nothing was given."""
        return not self.given and not self.future.done()

    def say(self, piece: str) -> None:
        """Tell a piece, where that is wanted; from any thread."""
        if self.tell is not None and not self.future.done():
            self.told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
                self.future.get_loop().call_soon_threadsafe(self.tell, piece)

    def give(self, result: Sequence[RowResult] | Exception) -> None:
        """The answers of all rows, or why there are none; from any thread."""
        give([(self, result)])


def give(results: Sequence[tuple[Job, Sequence[RowResult] | Exception]]) -> None:
    """Give several at once."""
    for job, _ in results:
        job.given = True
    if results:
        deliver(results[0][0].future.get_loop(), [(job.future, result) for job, result in results])


def as_exception(error: BaseException) -> Exception:
    """A panic of the tokenizers library is no Exception, and must not end the thread either."""
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def deliver(loop: asyncio.AbstractEventLoop, results: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set futures of a loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
        loop.call_soon_threadsafe(settle, results)


def settle(results: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set futures, from the thread of their loop."""
    for future, result in results:
        if future.done():  # its deadline passed
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

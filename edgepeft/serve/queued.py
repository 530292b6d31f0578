"""A request that waits for its answer, and what may become of it instead."""

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepeft.runtime.inputs import Readable
from edgepeft.runtime.prediction import RowResult

Tell = Callable[[str], object]  # has each piece of a text


class QueueFull(Exception):
    """There is no room for the request's rows; ``retry_after_s`` is when there should be."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class DeadlinePassed(Exception):
    """The answer did not come in time."""


class Closing(Exception):
    """The service is about to stop and takes nothing new."""


@dataclass(eq=False)
class QueuedRequest:
    """One request's rows; compared by identity."""

    tasks: Sequence[str | None]
    texts: Sequence[Readable]
    client: Hashable
    arrived: float
    future: asyncio.Future[Sequence[RowResult]]
    tell: Tell | None = None  # in the event loop
    most: int | None = None  # tokens of a text
    schema: Mapping[str, Any] | None = None  # to which a text keeps
    told: bool = False  # a piece, so that it can no longer begin anew
    given: bool = False

    @property
    def length(self) -> int:
        """Characters of its first text, about."""
        return len(str(self.texts[0]))

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


def give(results: Sequence[tuple[QueuedRequest, Sequence[RowResult] | Exception]]) -> None:
    """Give several requests their answers at once."""
    for job, _ in results:
        job.given = True
    if results:
        settled = [(job.future, result) for job, result in results]
        if (loop := results[0][0].future.get_loop()) is asyncio._get_running_loop():
            settle(settled)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
                loop.call_soon_threadsafe(settle, settled)


def as_exception(error: BaseException) -> Exception:
    """A panic of the tokenizers library is no Exception, and must not end the thread either."""
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def settle(results: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set futures, from the thread of their loop."""
    for future, result in results:
        if future.done():  # its deadline passed
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

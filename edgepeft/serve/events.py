"""Server-sent events (HTML Standard, 9.2) of a text that is being written.

event: piece     data: {"text": " it"}                        as often as whole characters were added
event: answer    data: the prediction as ``:predict`` gives it     once, in the end
event: error     data: {"error": {"code": ..., "message": ...}}    in its place
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse

from edgepeft.common.errors import EdgepeftError
from edgepeft.runtime.prediction import Answer
from edgepeft.runtime.runtime import RowResult
from edgepeft.serve.problems import Json, explain, fault, refusal_of

__all__ = ["EVENTS", "streamed"]

log = logging.getLogger("edgepeft.serve")

EVENTS = "text/event-stream"


async def streamed(
    task: str, answers: Callable[[Callable[[str], object]], Coroutine[Any, Any, Sequence[RowResult]]]
) -> Response:
    """The answer to a request for one text, once its first token is written; ``answers`` is given what to tell.

    Raises:
        Exception: what ``answers`` raised, or gave as the row's answer, before that.
    """
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    running = asyncio.create_task(answers(pieces.put_nowait))
    running.add_done_callback(lambda _: pieces.put_nowait(None))
    first = await pieces.get()
    if first is None and isinstance(error := running.result()[0], EdgepeftError):
        raise explain(error, task)
    return StreamingResponse(_events(first, pieces, running), media_type=EVENTS)


async def _events(
    first: str | None, pieces: asyncio.Queue[str | None], running: asyncio.Task[Sequence[RowResult]]
) -> AsyncIterator[bytes]:
    """The pieces, of which the queue ends with None, and how the request ended.

    Where this is closed before, the client is gone: the text is not written on.
    """
    try:
        piece = first
        while piece is not None:
            if piece:
                yield _event("piece", {"text": piece})
            piece = await pieces.get()
        yield _last(running)
    finally:
        running.cancel()


def _last(running: asyncio.Task[Sequence[RowResult]]) -> bytes:
    try:
        (answer,) = running.result()
        if isinstance(answer, EdgepeftError):
            raise answer
    except Exception as error:
        refused = refusal_of(error)
        if refused.code == "internal":
            log.error("a stream ended", exc_info=error)
        return _event("error", {"error": fault(refused.code, refused.message)})
    assert isinstance(answer, Answer), "a task was asked"
    return _event("answer", answer.as_json())


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    """JSON in ASCII has no line break."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), bytes(Json(data).body))

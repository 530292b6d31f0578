"""What every request is held to: who may ask, how much it may hold, how long its answer may take."""

import asyncio
import hmac
import math
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from time import monotonic
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgepeft.data.columns import CANDIDATES
from edgepeft.runtime.inputs import Readable
from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.problems import EXPECTED, HEADERS, Refused, problem, refusal_of
from edgepeft.serve.schemas import TuneRequest
from edgepeft.serve.settings import ServiceLimits, Settings, is_loopback

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

DEADLINE_HEADER = "X-Deadline-Ms"
_TOKENS_OF_A_ROW = 10  # strings, numbers, commas and brackets of a row with three fields
_TOKENS_BESIDE = 64  # of a request beside its rows
_DISCARDED = 8  # times the limit
_SMALL = 64 << 10  # bytes: a body that is held without being counted
# In the scope: whether the request may see what the token guards; and its body, which has been read.
AUTHORIZED, BODY = "edgepeft.authorized", "edgepeft.body"
_LATER = {"Retry-After": "1", "Connection": "close"}
_HEALTH = frozenset({"/healthz", "/readyz"})  # answered where everything else is refused as too much


class Guard:
    """ASGI middleware: host, token but for ``open_paths``, size and time of the body; counts requests, tells errors."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: ServiceMetrics, open_paths: Iterable[str]) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._open_paths = frozenset(open_paths)
        self._token = None if settings.token is None else settings.token.encode()
        self._under_way = self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = monotonic(), 0
        scope["path"] = scope["path"].rstrip("/") or "/"  # a slash behind a path changes nothing

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        reserved = 0
        self._under_way += 1
        try:
            request = Request(scope, receive)
            self._admit(scope, request.headers)
            self._held_bytes += (reserved := self._room_for(request.headers))
            scope[BODY] = await self._read(request)
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            pass  # there is no one to answer
        except Exception as error:
            if status:  # too late to say so
                raise
            await problem(refusal_of(error))(scope, receive, sending)
            if not isinstance(error, EXPECTED):  # the server logs it with its traceback
                raise
        finally:
            self._under_way -= 1
            self._held_bytes -= reserved
            route = getattr(scope.get("route"), "path", "other")
            counted = (route, status or HTTPStatus.INTERNAL_SERVER_ERROR.value, monotonic() - begin)
            asyncio.get_running_loop().call_soon(self.metrics.request, *counted)  # uvloop writes the answer first

    def _admit(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "").strip().lower()  # an IPv6 address has brackets, and what follows is a port
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self.settings.loopback and not is_loopback(host):
            # A page of another site whose name was made to lead here, to read what only this machine may ask.
            raise Refused(403, "wrong_host", "this service answers to localhost only: send Host: localhost.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = self._token is None or hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        scope[AUTHORIZED] = self._token is None or (right and scheme.lower() == "bearer")
        if not scope[AUTHORIZED] and scope["path"] not in self._open_paths:
            challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            raise Refused(401, "unauthorized", "send the token: Authorization: Bearer TOKEN.", challenge)
        if self._under_way > self.settings.limits.connections and scope["path"] not in _HEALTH:
            raise Refused(503, "busy", "too many requests are under way.", _LATER)

    def _room_for(self, headers: Headers) -> int:
        """Bytes to count for the body until its request is answered; those of a small body are not counted."""
        limits = self.settings.limits
        stated = headers.get("content-length", "0")
        if not stated.isascii() or not stated.isdigit() or int(stated[:20]) > _DISCARDED * limits.body_bytes:
            raise self._too_large
        size = limits.body_bytes if "transfer-encoding" in headers else min(int(stated), limits.body_bytes)
        if size <= _SMALL:
            return 0
        if self._held_bytes + size > limits.bodies * limits.body_bytes:
            raise Refused(503, "busy", "too many large bodies are being read.", _LATER)
        return size

    @property
    def _too_large(self) -> Refused:
        limit = self.settings.limits.body_bytes
        return Refused(413, "too_large", f"a body may have {limit} bytes.", {"Connection": "close"})

    async def _read(self, request: Request) -> bytes:
        """The whole body, before anything looks at it."""
        limit = self.settings.limits.body_bytes
        # A client that is still sending when the connection closes never sees the answer: what is a little too large is
        # read to its end, and thrown away.
        most = _DISCARDED * limit
        body, received = bytearray(), 0
        try:
            async with asyncio.timeout(self.settings.limits.read_s):
                async for piece in request.stream():
                    received += len(piece)
                    if received <= limit:
                        body += piece
                    if received > most:
                        raise self._too_large
        except TimeoutError:
            raise Refused(408, "too_slow", "the body did not come in time.", {"Connection": "close"}) from None
        if received > limit:
            raise self._too_large
        return bytes(body)


async def while_there(request: Request, answers: Coroutine[Any, Any, T]) -> T:
    """Await ``answers``; cancel them where the client leaves before, so that its text is not written on.

    The body is read, so what comes next is that it left, or sends no more, which looks alike.
    """
    running, leaving = asyncio.ensure_future(answers), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and leaving.exception() is None:
            raise Refused(499, "client_gone", "the client left.")
        return await running
    finally:
        running.cancel()
        leaving.cancel()


def parsed_body(content: bytes, model: type[Body], most_rows: int) -> Body:
    """Parse a body, after a search that ends at one too many has counted its strings and members."""
    most = _TOKENS_OF_A_ROW * most_rows + _TOKENS_BESIDE
    if _more_tokens_than(most).match(content):
        raise Refused(413, "too_many_rows", f"a request may hold {most_rows} rows; this one holds more than they need.")
    try:
        return model.model_validate_json(content)
    except ValidationError:
        if not content.strip():
            raise Refused(400, "not_json", "the body is empty; send JSON.") from None
        try:
            content.decode()
        except UnicodeDecodeError as error:
            said = f"the body is not JSON, which is UTF-8 (byte {error.start})."
            raise Refused(400, "not_json", said) from None
        raise


@cache
def _more_tokens_than(count: int) -> re.Pattern[bytes]:
    return re.compile(rb'(?:[^"\[{,0-9]*+(?:"(?:[^"\\]++|\\.)*+"|[\[{,]|[0-9]{1,20}+)){%d}' % (count + 1), re.DOTALL)


def check_texts(texts: Sequence[Readable], limits: ServiceLimits) -> None:
    """Check what is to be answered."""
    held, most = sum(map(_rows_of, texts)), limits.text_characters
    if held > limits.rows:
        raise Refused(413, "too_many_rows", f"a request may hold {limits.rows} rows; this one holds {held}.")
    for row, longest in enumerate(map(_characters, texts)):
        if longest > most:
            raise Refused(413, "text_too_long", f"row {row}: a text may have {most} characters, not {longest}.")


def check_taught(asked: TuneRequest, limits: ServiceLimits) -> None:
    """Check the rows of a fine-tuning run."""
    most, most_rows = limits.text_characters, limits.tuning_rows
    if len(asked.rows) > most_rows:
        raise Refused(413, "too_many_rows", f"a request may hold {most_rows} rows; this one holds {len(asked.rows)}.")
    for row, each in enumerate(asked.rows):
        numeric = isinstance(each.label, float) and not math.isfinite(each.label)
        if numeric or max(_characters(each.given), len(str(each.label))) > most:
            raise Refused(422, "invalid", f"rows.{row}: a text may have {most} characters, and a label is finite.")


def deadline_of(request: Request) -> float | None:
    """Seconds until the answer is of no use; None where the request says nothing."""
    given = request.headers.get(DEADLINE_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and 0 < len(given) <= 9 and int(given) > 0):
        raise Refused(400, "invalid", f"{DEADLINE_HEADER} is a number of milliseconds.")
    return int(given) / 1000


def _rows_of(text: Readable) -> int:
    """Each candidate is computed as a row."""
    candidates = text.get(CANDIDATES) if isinstance(text, Mapping) else None
    return max(1, len(candidates)) if isinstance(candidates, list) else 1


def _characters(text: Readable) -> int:
    """Characters of its longest part."""
    if isinstance(text, str):
        return len(text)
    return max((len(str(part or "")) for part in (text.values() if isinstance(text, Mapping) else text)), default=0)

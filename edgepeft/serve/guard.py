"""What stands before every route: who may ask, how much may be sent, and what every answer carries."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from http import HTTPStatus
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.problems import HEADERS, Refused, problem
from edgepeft.serve.settings import Settings, is_loopback

__all__ = ["AUTHORIZED", "Guard"]

_DISCARDED = 8  # times the limit
_SMALL = 64 << 10  # bytes: a body that is held without being counted
AUTHORIZED = "edgepeft.authorized"  # in the scope: whether the request may see what the token guards
_LATER = {"Retry-After": "1", "Connection": "close"}
_HEALTH = frozenset({"/healthz", "/readyz"})  # answered where everything else is refused as too much


class _ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Guard:
    """ASGI middleware: host, token, size and time of the body; counts what passes.

    ``open_paths`` need no token: the page asks for it, and a health check has none.
    """

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
        begin, status = monotonic(), HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        reserved = 0
        self._under_way += 1
        try:
            try:
                self._admit(scope)
                self._held_bytes += (reserved := self._room_for(scope))
                body = await self._read(receive)
            except Refused as refused:
                await problem(refused)(scope, receive, sending)
            except _ClientGone:
                pass  # there is no one to answer
            else:
                await self.app(scope, _replay(body, receive), sending)
        finally:
            self._under_way -= 1
            self._held_bytes -= reserved
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, status, monotonic() - begin)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self.settings.loopback and not is_loopback(_host(headers.get("host", ""))):
            # A page of another site whose name was made to lead here, to read what only this machine may ask.
            raise Refused(403, "wrong_host", "this service answers to localhost only.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = self._token is None or hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        scope[AUTHORIZED] = self._token is None or (right and scheme.lower() == "bearer")
        if not scope[AUTHORIZED] and scope["path"] not in self._open_paths:
            challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            raise Refused(401, "unauthorized", "send the token: Authorization: Bearer TOKEN.", challenge)
        if self._under_way > self.settings.limits.connections and scope["path"] not in _HEALTH:
            raise Refused(503, "busy", "too many requests are under way.", _LATER)

    def _room_for(self, scope: Scope) -> int:
        """Bytes to count for the body until its request is answered; those of a small body are not counted."""
        limits, headers = self.settings.limits, Headers(scope=scope)
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

    async def _read(self, receive: Receive) -> bytes:
        """The whole body, before anything looks at it."""
        limit = self.settings.limits.body_bytes
        # A client that is still sending when the connection closes never sees the answer: what is a little too large is
        # read to its end, and thrown away.
        most = _DISCARDED * limit
        body, received = bytearray(), 0
        try:
            async with asyncio.timeout(self.settings.limits.read_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGone
                    piece = message.get("body", b"")
                    received += len(piece)
                    if received <= limit:
                        body += piece
                    more = message.get("more_body", False)
                    if received > most:
                        raise self._too_large
        except TimeoutError:
            raise Refused(408, "too_slow", "the body did not come in time.", {"Connection": "close"}) from None
        if received > limit:
            raise self._too_large
        return bytes(body)


def _host(value: str) -> str:
    """Without the port, and without an IPv6 address's brackets."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed

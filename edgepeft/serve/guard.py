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

__all__ = ["Guard"]

_DISCARDED = 8  # times the limit


class Guard:
    """ASGI middleware: host, token, size and time of the body; counts what passes.

    ``open_paths`` need no token: the page asks for it, and a health check has none.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: ServiceMetrics, open_paths: Iterable[str]) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._open_paths = frozenset(open_paths)
        self._token = None if settings.token is None else settings.token.encode()

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

        try:
            try:
                self._admit(scope)
                body = await self._read(scope, receive)
            except Refused as refused:
                await problem(refused)(scope, receive, sending)
            else:
                await self.app(scope, _replay(body, receive), sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, status, monotonic() - begin)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self.settings.loopback and not is_loopback(_host(headers.get("host", ""))):
            # A page of another site whose name was made to lead here, to read what only this machine may ask.
            raise Refused(403, "wrong_host", "this service answers to localhost only.")
        if self._token is not None and scope["path"] not in self._open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
            if not (right and scheme.lower() == "bearer"):
                challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
                raise Refused(401, "unauthorized", "send the token: Authorization: Bearer TOKEN.", challenge)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, before anything looks at it."""
        limit = self.settings.limits.body_bytes
        too_large = Refused(413, "too_large", f"a body may have {limit} bytes.", {"Connection": "close"})
        stated = Headers(scope=scope).get("content-length", "0")
        # A client that is still sending when the connection closes never sees the answer: what is a little too large is
        # read to its end, and thrown away.
        most = _DISCARDED * limit
        if not stated.isascii() or not stated.isdigit() or int(stated[:20]) > most:
            raise too_large
        body, received = bytearray(), 0
        try:
            async with asyncio.timeout(self.settings.limits.read_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    piece = message.get("body", b"")
                    received += len(piece)
                    if received <= limit:
                        body += piece
                    more = message.get("more_body", False)
                    if received > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, "too_slow", "the body did not come in time.", {"Connection": "close"}) from None
        if received > limit:
            raise too_large
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

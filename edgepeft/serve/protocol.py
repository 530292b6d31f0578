"""uvicorn's HTTP/1.1 on httptools, with bounds that it does not have.

Of connections, in all and for each address; of a request's head, in bytes, fields and seconds; of what comes between
the pieces of a body; of requests that are queued on one connection; and of the time that an answer waits to be read.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from time import monotonic
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from edgepeft.serve.problems import Json, fault
from edgepeft.serve.settings import ServiceLimits

HEALTH_RESERVE = 16  # connections beyond the limit, so that a health check is answered where all others are at work
_MOST_FIELDS = 100  # of a head
_MOST_CHUNKS = 256  # of a body, that are smaller than 1 KiB: each costs the event loop two calls, whatever its size
_MOST_QUEUED = 8  # requests of one connection that wait for the one before; browsers send none
_SWEEP_S = 1.0

_TOO_LARGE = (431, "Request Header Fields Too Large", "headers_too_large", "too many headers.")
_NO_TRAILERS = (400, "Bad Request", "trailers", "trailers are not read here.")
_TOO_FINE = (413, "Content Too Large", "too_many_chunks", f"a body may have {_MOST_CHUNKS} chunks of less than 1 KiB.")
_TOO_MANY = (429, "Too Many Requests", "too_many_requests", "wait for the answers to earlier requests.")
_NO_HTTP = (400, "Bad Request", "not_http", "this is no HTTP request.")


class _Stop(Exception):
    """Ends the parser within what it has been given."""


class Connections:
    """Those that are open; at most ``limits.connections`` and ``HEALTH_RESERVE``, and ``per_address`` of one address.

    Where there are too many, the one that has waited longest for its client makes room, of the address that has most.
    Where each is at work, the new one is closed.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self._open: dict[Limited, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, new: Limited, host: str) -> bool:
        """Whether it may stay; another one is closed for it where need be."""
        address = address_of(host)
        if address and self._counts[address] >= self.limits.connections_per_address:
            room = self._make_room(each for each, its in self._open.items() if its == address)
        else:
            full = len(self._open) >= self.limits.connections + HEALTH_RESERVE
            room = not full or self._make_room(self._open)
        if room:
            self._open[new] = address
            self._counts[address] += 1
        return room

    def remove(self, connection: Limited) -> None:
        """It is closed."""
        if (address := self._open.pop(connection, None)) is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _make_room(self, candidates: Iterable[Limited]) -> bool:
        waiting = [each for each in candidates if each.waits_for_client]
        if not waiting:
            return False
        last = max(waiting, key=lambda each: (self._counts[self._open[each]], -each.waiting_since))
        self.remove(last)
        last.transport.abort()
        return True

    def sweep(self, now: float) -> None:
        """Cut off every connection whose client takes too long."""
        for each in list(self._open):
            if each.is_overdue(now):
                self.remove(each)
                each.transport.abort()

    async def watch(self) -> None:
        """Sweep, once a second."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep(monotonic())


@lru_cache(1024)
def address_of(host: str) -> str:
    """Whom a connection counts for: an IPv4 address, or 64 bits of an IPv6 one, which is what a single host may have.

    Empty for this machine itself: a proxy on it speaks for all clients.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return ""
    return str(address) if address.version == 4 else str(int(address) >> 64)


class Limited(HttpToolsProtocol):
    """A connection.  ``gone`` is called with (host, port) of its client when it is closed."""

    def __init__(
        self, limits: ServiceLimits, connections: Connections, gone: Callable[[Any], object], **of_uvicorn: Any
    ) -> None:
        super().__init__(**of_uvicorn)
        self._limits, self._all, self._gone = limits, connections, gone
        self.waiting_since = monotonic()  # for a request; of those that wait, the first to be closed
        self._head_since: float | None = self.waiting_since  # when what must become a head began
        self._read_at = self.waiting_since  # when the client was last seen to have taken all of its answers
        self._barren = 0  # bytes received since the parser last made something of them
        self._chunks = 0
        self._in_head, self._refused = True, False
        self._running: RequestResponseCycle | None = None  # uvicorn's own ``cycle`` is the last that was queued

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to ask, to send the rest, to read."""
        cycle = self._running
        return cycle is None or bool(cycle.response_complete or cycle.more_body or self.flow.write_paused)

    def is_overdue(self, now: float) -> bool:
        """Whether the client takes longer over a head, or over reading, than it may."""
        if self.transport.get_write_buffer_size():
            return now - self._read_at > self._limits.write_s
        self._read_at = now
        return self._head_since is not None and now - self._head_since > self._limits.read_s

    def connection_made(self, transport: Any) -> None:
        """Admit it, or close it at once."""
        super().connection_made(transport)
        if not self._all.admit(self, self.client[0] if self.client else ""):
            self._refused = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._all.remove(self)
        super().connection_lost(exc)
        self._gone(self.client)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless too much came that is of no use."""
        if self._refused:
            return
        now = monotonic()
        if not self.transport.get_write_buffer_size():
            self._read_at = now
        if self._in_head and self._head_since is None:
            self._head_since = now
        self._barren += len(data)
        super().data_received(data)
        if self._barren > self._limits.header_bytes:
            self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin a request; close where too many wait."""
        if len(self.pipeline) >= _MOST_QUEUED:
            self._stop(*_TOO_MANY)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; a trailer ends the request."""
        if not self._in_head:
            self._stop(*_NO_TRAILERS)
        if len(self.headers) >= _MOST_FIELDS:
            self._stop(*_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request over, unless its head is too large."""
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self._limits.header_bytes:
            self._stop(*_TOO_LARGE)
        self._in_head, self._head_since = False, None
        self._barren = self._chunks = 0
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A chunk of a body begins."""
        self._barren = 0
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            self._stop(*_TOO_FINE)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._barren = 0
        self._chunks -= len(body) >> 10
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        super().on_message_complete()
        self._in_head, self._barren = True, 0

    def on_response_complete(self) -> None:
        """Count from here how long the client keeps silent."""
        self.waiting_since = monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read; or has been stopped at, which was answered."""
        self._refuse(*_NO_HTTP)

    def _stop(self, *why: Any) -> None:
        self._refuse(*why)
        raise _Stop

    def _refuse(self, status: int, phrase: str, code: str, message: str) -> None:
        """Answer, unless an earlier answer is under way; in any case close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        cycle = self._running
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = bytes(Json({"error": fault(code, message)}).body)
            head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.pipeline.clear()
        if cycle is not None:
            cycle.disconnected = True  # so that the application does little more, and writes nothing behind this
            cycle.message_event.set()
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

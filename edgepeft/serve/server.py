"""Listening over HTTP/1.1, logging, and stopping: SIGTERM ends gracefully, SIGHUP reads the bundle again.

uvicorn's protocol on httptools gets bounds that it does not have: of connections, in all and for each address; of a
request's head, in bytes, fields and seconds; of what comes between the pieces of a body; of requests that are queued on
one connection; and of the time that an answer waits to be read.

Log lines are of printable text: names and messages come from bundles and clients, and a log is read in a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import ipaddress
import logging
import math
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from time import monotonic
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.messages import printable
from edgepeft.runtime.session import share_threads
from edgepeft.serve.app import create_app, reload_soon
from edgepeft.serve.problems import Json, fault
from edgepeft.serve.routes import Serving
from edgepeft.serve.settings import ServiceLimits, Settings

_LOST = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
_KEEP_ALIVE_S = 30
_BACKLOG = 512
_END_S = 3  # after the last answer: what is left then does not end by itself
_MAX = 4000  # characters of a log line
HEALTH_RESERVE = 16  # connections beyond the limit, so that a health check is answered where all others are at work
_MAX_FIELDS = 100  # of a head
_MAX_CHUNKS = 256  # of a body, that are smaller than 1 KiB: each costs the event loop two calls, whatever its size
_MAX_QUEUED = 8  # requests of one connection that wait for the one before; browsers send none
_SWEEP_S = 1.0

_UPGRADE = re.compile(rb"(?i)(?<=\r\n)upgrade(?=:)")

_TOO_LARGE = (431, "Request Header Fields Too Large", "headers_too_large", "too many headers.")
_NO_TRAILERS = (400, "Bad Request", "trailers", "trailers are not read here.")
_TOO_FINE = (413, "Content Too Large", "too_many_chunks", f"a body may have {_MAX_CHUNKS} chunks of less than 1 KiB.")
_TOO_MANY = (429, "Too Many Requests", "too_many_requests", "wait for the answers to earlier requests.")
_NO_HTTP = (400, "Bad Request", "not_http", "this is no HTTP request.")


class _Stop(Exception):
    """Ends the parser within what it has been given."""


class Connections:
    """Open connections: at most ``limits.connections`` and ``HEALTH_RESERVE``, and ``per_address`` of one address.

    One more takes the place of the one that has waited longest for its client, of the address that has most; it is
    closed where all are at work.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self._open: dict[Limited, str] = {}  # with its address

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, new: Limited, host: str) -> bool:
        """Whether it may stay; another one is closed for it where need be."""
        address = address_of(host)
        of_address = [each for each, its in self._open.items() if its == address]
        if address and len(of_address) >= self.limits.connections_per_address:
            room = self._make_room(of_address)
        else:
            full = len(self._open) >= self.limits.connections + HEALTH_RESERVE
            room = not full or self._make_room(self._open)
        if room:
            self._open[new] = address
        return room

    def remove(self, connection: Limited) -> None:
        """It is closed."""
        self._open.pop(connection, None)

    def _make_room(self, candidates: Iterable[Limited]) -> bool:
        waiting = [each for each in candidates if each.waits_for_client]
        if not waiting:
            return False
        counts = Counter(self._open.values())
        last = max(waiting, key=lambda each: (counts[self._open[each]], -each.waiting_since))
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
    """Name whom connections count for: an IPv4 address or IPv6 /64; empty for this machine: a proxy speaks for all."""
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

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has asked and sends no more (shutdown(2)) gets its answers; then the connection closes."""
        waits = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
        if waits:
            self.cycle.keep_alive = False
            self.cycle.message_event.set()  # it may also be gone: a text is not written on for it, see ``while_there``
        return waits

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless too much came that is of no use."""
        if self._refused:
            return
        now = monotonic()
        if not self.transport.get_write_buffer_size():
            self._read_at = now
        if self._in_head:
            self._head_since = now if self._head_since is None else self._head_since
            head, end, body = data.partition(b"\r\n\r\n")  # the parser reads no body behind an offer of HTTP/2
            data = _UPGRADE.sub(b"Ignored", head) + end + body
        self._barren += len(data)
        super().data_received(data)
        if self._barren > self._limits.header_bytes:
            self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin a request; close where too many wait."""
        if len(self.pipeline) >= _MAX_QUEUED:
            self._stop(*_TOO_MANY)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; a trailer ends the request."""
        if not self._in_head:
            self._stop(*_NO_TRAILERS)
        if len(self.headers) >= _MAX_FIELDS:
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
        if self._chunks > _MAX_CHUNKS:
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
        """Refuse what the parser cannot read; where it was stopped, that was answered."""
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


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is no address of this machine ({error.strerror}).") from error
    except OSError as error:
        said = f"cannot listen on {host} port {port} ({os.strerror(error.errno or 0)})."  # its own names the address
        if error.errno not in _LOST:
            raise EdgepeftError(said) from error
        other = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        raise UsageError(f"{said} Give another {other}.") from error


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn's own would end the process by the signal after all is done."""
        yield


def run_server(settings: Settings, started: Callable[[str], object] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT; ``started`` is called with the address once the tasks are open."""
    app = create_app(settings)
    limits = settings.limits
    connections, graceful_s = Connections(limits), math.ceil(limits.deadline_s)
    protocol: Any = partial(Limited, limits, connections, app.state.serving.batcher.forget)
    with listen(settings.host, settings.port) as listening:
        if settings.workers == 1:  # no session is open yet
            share_threads(settings.threads)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=graceful_s,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        server = _Server(config)

        async def serve() -> None:
            _handle_signals(server, app.state.serving, graceful_s + _END_S)

            async def announce() -> None:
                await app.state.serving.started.wait()
                started(f"http://{shown}:{port}")

            beside = [asyncio.create_task(each) for each in (connections.watch(), announce())]
            await server.serve(sockets=[listening])
            for each in beside:
                each.cancel()

        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve())


def _handle_signals(server: uvicorn.Server, serving: Serving, most_s: int) -> None:
    """SIGTERM and SIGINT end the service within ``most_s`` seconds, SIGHUP has it read the bundle."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:  # the second time: requests are cut off, and uvicorn would log each of them
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            server.force_exit = True
        else:  # a thread that needs no interpreter ends the process where a native call does not return
            faulthandler.dump_traceback_later(most_s, exit=True)
        server.should_exit = True
        serving.state = "stopping"

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload_soon, serving)


def line(text: str) -> str:
    """One line: what is not printable, or turns the direction of writing, is escaped; what is very long is cut."""
    shown = printable(text[:_MAX], keep="")
    return shown if len(text) <= _MAX else f"{shown}..."


class PrintableFormatter(logging.Formatter):
    """A message is one line; the lines of a traceback are indented, so that none passes for a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, escaped."""
        return line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """The traceback, escaped."""
        return "\n".join(f"  {line(one)}" for one in super().formatException(ei).splitlines())


def log_to_stderr() -> None:
    """Send what the service has to say there, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])

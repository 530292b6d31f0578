"""uvicorn's HTTP/1.1 on httptools, with bounds that it does not have: of a request's headers, in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edgepeft.serve.settings import ServiceLimits

__all__ = ["limited_protocol"]

_BODY = b'{"error":{"code":"headers_too_large","message":"too many headers."}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


def limited_protocol(limits: ServiceLimits, gone: Callable[[Any], object] = lambda _: None) -> type[asyncio.Protocol]:
    """The class that uvicorn makes one of for each connection; ``gone`` hears whose was closed, (host, port)."""

    class Limited(HttpToolsProtocol):
        """A connection; in the head of a request until its headers are complete."""

        _in_head = True
        _head_bytes = 0  # received of it
        _refused = False
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)
            gone(self.client)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            self._head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._head_bytes:
                self._start_timer()
                if self._head_bytes > limits.header_bytes:
                    self._refuse()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > limits.header_bytes:
                self._refuse()
            else:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self._refused:
                super().on_message_complete()
            self._in_head, self._head_bytes = True, 0

        def _refuse(self) -> None:
            if not self._refused and not self.transport.is_closing():
                self._refused = True
                self.transport.write(_TOO_LARGE)
                self.transport.close()

        def _start_timer(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.read_s, self._too_slow)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            if self._in_head and not self.transport.is_closing():
                self.transport.close()

    return Limited

"""Static files over loopback, with Range requests as web servers and buckets have them; counts, and errs on demand."""

from __future__ import annotations

import contextlib
import mimetypes
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Fault = Callable[[Any, bytes], object]  # writes a body of its own, given the right one


@dataclass
class Served:
    """A folder that is served at ``address``; ``faults`` by what a path ends with."""

    folder: Path
    address: str = ""
    asked: list[tuple[str, int, int]] = field(default_factory=list)  # path, where the answer begins, its bytes
    faults: dict[str, Fault] = field(default_factory=dict)
    ranges: bool = True
    headers: dict[str, str] = field(default_factory=dict)  # of every answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what is wrong, unless it is a client that has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a folder on a free port of loopback."""
    served = Served(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer, whole or in part."""
            path = folder / unquote(self.path).lstrip("/")
            if not path.is_file():
                served.asked.append((self.path, 0, 0))
                self.send_error(404)
                return
            content, start = path.read_bytes(), 0
            if served.ranges and (found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
                start = int(found[1])
            if start >= len(content) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            for name, value in {"Content-Type": mimetypes.guess_type(path.name)[0], **served.headers}.items():
                self.send_header(name, value or "application/octet-stream")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            fault = next((each for end, each in served.faults.items() if self.path.endswith(end)), None)
            served.asked.append((self.path, start, len(content) - start))
            if fault is None:
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:])
                return
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):  # the client has left
                fault(self.wfile, content[start:])

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()

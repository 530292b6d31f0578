"""A relay over loopback that counts what passes: bytes of a board at the wire, TLS, HTTP/2 and heartbeats with them."""

from __future__ import annotations

import contextlib
import socket
import threading

_PIECE_BYTES = 64 << 10


class Relay:
    """Passes connections to ``port`` on to the server's; ``up`` are bytes to the server, ``down`` those from it."""

    def __init__(self, server_port: int) -> None:
        self.up = self.down = 0
        self._server_port, self._counting = server_port, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end with their ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake accept
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                board, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for ends in ((board, server, "up"), (server, board, "down")):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):  # either end has left
            while piece := source.recv(_PIECE_BYTES):
                with self._counting:  # a board may have several connections
                    setattr(self, way, getattr(self, way) + len(piece))
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

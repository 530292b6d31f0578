"""Listening, logging, and stopping: SIGTERM ends gracefully, SIGHUP reads the bundle again.

Log lines are of printable text: names and messages come from bundles and clients, and a log is read in a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.messages import printable
from edgepeft.serve.app import create_app, reload_soon
from edgepeft.serve.protocol import Connections, Limited
from edgepeft.serve.routes import Serving
from edgepeft.serve.settings import Settings

_LOST = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
_KEEP_ALIVE_S = 30
_BACKLOG = 512
_END_S = 3  # after the last answer: what is left then does not end by itself
_MOST = 4000  # characters of a log line


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is no address of this machine ({error.strerror}).") from error
    except OverflowError as error:
        raise UsageError(f"--port is a number up to 65535; found {port}.") from error
    except OSError as error:
        if error.errno not in _LOST:
            raise EdgepeftError(f"cannot listen on {host} port {port} ({error.strerror}).") from error
        raise UsageError(f"cannot listen on {host} port {port} ({error.strerror}). Give another --port.") from error
    return listening


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
    shown = printable(text[:_MOST], keep="")
    return shown if len(text) <= _MOST else f"{shown}..."


class PrintableFormatter(logging.Formatter):
    """A message is one line; the lines of a traceback are indented, so that none passes for a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, escaped."""
        return line(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The traceback, escaped."""
        return "\n".join(f"  {line(one)}" for one in super().formatException(ei).splitlines())


def log_to_stderr() -> None:
    """Send what the service has to say there, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])

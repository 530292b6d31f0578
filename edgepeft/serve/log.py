"""Log lines of printable text: names and messages come from bundles and clients, and a log is read in a terminal."""

from __future__ import annotations

import logging
from types import TracebackType

from edgepeft.common.messages import printable

__all__ = ["PrintableFormatter", "line", "log_to_stderr"]

_MOST = 4000  # characters of a line


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

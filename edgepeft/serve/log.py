"""Log lines of printable text: names and messages come from bundles and clients, and a log is read in a terminal."""

from __future__ import annotations

import logging
from types import TracebackType

__all__ = ["PrintableFormatter", "log_to_stderr", "printable"]

_MOST = 4000  # characters of a line


def printable(text: str) -> str:
    """One line: what is not printable, or turns the direction of writing, is escaped; what is very long is cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:_MOST])
    return shown if len(text) <= _MOST else f"{shown}..."


class PrintableFormatter(logging.Formatter):
    """A message is one line; the lines of a traceback are indented, so that none passes for a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, escaped."""
        return printable(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The traceback, escaped."""
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).splitlines())


def log_to_stderr() -> None:
    """Send what the service has to say there, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])

"""Starts a program through the launcher, which enters the limits, reports, waits for a byte, and becomes the work.

The work starts only after the parent has read back what is in force, so a backend that turns out
not to hold is given up before anything ran under it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from edgepeft.common.errors import UsageError
from edgepeft.device.limits import launcher
from edgepeft.device.limits.placement import LauncherReport, Placement, Unavailable

__all__ = ["Launch", "NoMemoryToStart"]

_START_SECONDS = 60.0  # an emulated or heavily loaded board needs a while to start Python


class NoMemoryToStart(Exception):
    """The limit is too small for the launcher, or for loading the program at all."""


class Launch:
    """One start. ``process`` is the launcher, later the work: they are the same process.

    ``options`` go to :class:`subprocess.Popen` as they are.
    """

    def __init__(self, placement: Placement, argv: Sequence[str], options: dict[str, Any]):
        self._placement = placement
        self._program = argv[0]
        self._text = b""
        self._ours: list[int] = []
        theirs: list[int] = []
        try:
            self._report, report = self._pipe(theirs, keep="read")
            self._go, go = self._pipe(theirs, keep="write")
            keeper = self._pipe(theirs, keep="write")[1] if placement.keeper else None
            spec = {
                "report_fd": report,
                "go_fd": go,
                "keeper_fd": keeper,
                "joins": [str(path) for path in placement.joins],
                "cpus": placement.cpus,
                "address_space_bytes": placement.address_space_bytes,
            }
            # -I -S: the launcher must not be slowed down or altered by the work's environment.
            start = [sys.executable, "-I", "-S", launcher.__file__, json.dumps(spec)]
            command = [*placement.wrapper, *start, *argv]
            self.process: subprocess.Popen[Any] = subprocess.Popen(command, pass_fds=theirs, **options)
        except BaseException:
            self._close_ours()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _pipe(self, theirs: list[int], keep: str) -> tuple[int, int]:
        """A pipe, as (our end, the launcher's end)."""
        reader, writer = os.pipe()
        ours, other = (reader, writer) if keep == "read" else (writer, reader)
        self._ours.append(ours)
        theirs.append(other)
        return ours, other

    def report(self) -> LauncherReport:
        """What the launcher sees inside the limits; it waits for :meth:`go` now."""
        seen = self._next()
        if seen is None:
            self._gone()
        elif "stage" in seen:
            if _is_memory(seen):
                raise NoMemoryToStart
            raise Unavailable(f"the child could not enter its group ({seen['reason']})")
        else:
            return LauncherReport(seen["pid"], tuple(seen["cpus"]), seen["address_space_bytes"])
        raise Unavailable(f"the launcher did not start under {self._placement.backend}")

    def go(self) -> None:
        """Let the work start, and return when it has."""
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: the next line finds that out
            os.write(self._go, b"g")
        failure = self._next()  # the end of the pipe is the good case: it closes with the exec
        if failure is None:
            return
        if _is_memory(failure):
            raise NoMemoryToStart
        raise UsageError(f"the program {self._program!r} cannot be started: {failure['reason']}.")

    def _next(self) -> dict[str, Any] | None:
        """The launcher's next line; None at the pipe's end, or if it hangs (a password prompt)."""
        while b"\n" not in self._text:
            if not select.select([self._report], [], [], _START_SECONDS)[0]:
                return None
            if not (part := os.read(self._report, 1 << 16)):
                return None
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        return document

    def _gone(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)  # a kill for memory is counted by then
        # A scope's counters went with it; nothing else kills a launcher in its first milliseconds.
        if self._placement.oom_kills() or self.process.poll() == -signal.SIGKILL:
            raise NoMemoryToStart

    def stop(self) -> None:
        """Kill the process if it runs, collect its status, close our ends of its pipes."""
        if self.process.poll() is None:
            self.process.kill()  # a paused process dies of SIGKILL too
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):  # what was buffered for a dead reader
                    stream.close()

    def release(self) -> None:
        """End the keeper, and with it the place that it kept."""
        self._close_ours()

    def _close_ours(self) -> None:
        while self._ours:
            os.close(self._ours.pop())


def _is_memory(failure: dict[str, Any]) -> bool:
    return bool(failure["reason"] == "MemoryError" or failure["errno"] == errno.ENOMEM)

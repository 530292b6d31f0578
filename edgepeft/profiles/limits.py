"""Run a program under a device's cores and memory (SPARTAN, arXiv:2211.16634, appendix F).

The limits hold a child process, never this one. Backends are tried in order and what one of them
achieved is read back from the kernel, so a result can say what it was measured under.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from edgepeft.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.profiles import cgroup_v1, cgroup_v2, launch, rlimit, systemd_scope
from edgepeft.profiles.cores import pick_cpus, usable_cores
from edgepeft.profiles.judgement import judge
from edgepeft.profiles.placement import InForce, Limits, Placement, Report, Unavailable

__all__ = ["BACKENDS", "InForce", "LimitedProcess", "LimitedRun", "Limits", "run_limited"]

Prepare = Callable[[Limits, Sequence[int] | None], Placement]
Stream = int | IO[Any] | None

# In order of preference; the last one always works.
BACKENDS: tuple[Prepare, ...] = (
    cgroup_v2.prepare,
    cgroup_v1.prepare,
    systemd_scope.prepare,
    rlimit.prepare,
)

_START_SECONDS = 60.0  # an emulated or heavily loaded board needs a while to start Python
_ENOMEM = 12

# What a program says when an allocation is refused, as RLIMIT_AS makes it: Python, C++, C, the
# dynamic linker, ONNX Runtime, torch.
_OUT_OF_MEMORY = (
    "memoryerror",
    "std::bad_alloc",
    "cannot allocate memory",
    "failed to map segment",
    "failed to allocate memory",
    "can't allocate memory",
    "out of memory",
)


class LimitedProcess:
    """A program running under limits; a context manager that leaves nothing behind.

    ``in_force`` says what limits it, ``popen`` is the running process. Leaving the block kills the
    program if it still runs, and removes its groups; the counters stay readable afterwards.

    Raises:
        DoesNotFit: the limits do not even let the program start.
        UsageError: the program cannot be started at all.
    """

    def __init__(
        self,
        argv: Sequence[str],
        limits: Limits,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.PIPE,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = None,
        text: bool = False,
        backends: Sequence[Prepare] = BACKENDS,
    ):
        self.limits = limits
        self._final: tuple[int, int | None] | None = None
        self._resident_peak: int | None = None
        cpus = None if limits.cores is None else pick_cpus(min(limits.cores, usable_cores()))
        options = {
            "env": None if env is None else dict(env),
            "cwd": cwd,
            "stdin": stdin,
            "stdout": stdout,
            "stderr": stderr,
            "text": text,
        }
        refused: list[str] = []
        for prepare in backends:
            try:
                self._start(prepare(limits, cpus), list(argv), options, refused)
                return
            except Unavailable as reason:
                refused.append(str(reason))
        raise EdgepeftError(f"no way to limit a process works here: {'; '.join(refused)}.")

    def _start(self, placement: Placement, argv: list[str], options: dict[str, Any], refused: Sequence[str]) -> None:
        """Start ``argv`` in ``placement``, or take it down again and say why not."""
        self._placement = placement
        self._keeper: int | None = None
        self._process: subprocess.Popen[Any] | None = None
        try:
            report = self._launch(argv, options)
            placement.entered(report)
            self.in_force = judge(self.limits, placement, report, refused)
        except BaseException:
            self.close()
            self._final = None
            raise

    def _launch(self, argv: list[str], options: dict[str, Any]) -> Report:
        reader, writer = os.pipe()
        try:
            kept = [writer]
            spec: dict[str, Any] = {
                "report_fd": writer,
                "joins": [str(path) for path in self._placement.joins],
                "cpus": self._placement.cpus,
                "address_space_bytes": self._placement.address_space_bytes,
                "keeper_fd": None,
            }
            if self._placement.keeper:
                spec["keeper_fd"], self._keeper = os.pipe()
                kept.append(spec["keeper_fd"])
            # -I -S: the launcher must not be slowed down or altered by the work's environment.
            launcher = [sys.executable, "-I", "-S", launch.__file__, json.dumps(spec)]
            self._process = subprocess.Popen([*self._placement.wrapper, *launcher, *argv], pass_fds=kept, **options)
        except BaseException:
            os.close(reader)
            raise
        finally:
            for descriptor in kept:
                os.close(descriptor)
        with os.fdopen(reader, "rb") as file:
            return self._read_report(file, argv)

    def _read_report(self, file: IO[bytes], argv: list[str]) -> Report:
        """The launcher's word. The pipe ends when the work starts or the launcher dies."""
        lines = _lines_until_end(file)
        documents = [json.loads(line) for line in lines if line.endswith(b"\n")]
        failure = next((document for document in documents if "stage" in document), None)
        if failure is not None:
            self._explain(failure, argv)
        if not documents:
            if self._placement.oom_kills():
                raise self._error()
            raise Unavailable(f"the launcher did not start under {self._placement.backend}")
        seen = documents[0]
        return Report(seen["pid"], tuple(seen["cpus"]), seen["address_space_bytes"])

    def _explain(self, failure: dict[str, Any], argv: list[str]) -> None:
        if failure["reason"] == "MemoryError" or failure["errno"] == _ENOMEM:
            raise self._error()
        if failure["stage"] == "enter":
            raise Unavailable(f"the child could not enter its group ({failure['reason']})")
        raise UsageError(f"the program {argv[0]!r} cannot be started: {failure['reason']}.")

    @property
    def popen(self) -> subprocess.Popen[Any]:
        """The program's process: after the launcher's exec its pid is the work's."""
        assert self._process is not None
        return self._process

    def oom_killed(self) -> bool:
        """Whether the kernel killed the program, or a part of it, for memory."""
        return (self._final[0] if self._final else self._placement.oom_kills()) > 0

    def peak_bytes(self) -> int | None:
        """The most memory used: the group's counter, else the resident peak while the program lives."""
        if self._final:
            return self._final[1]
        if (peak := self._placement.peak_bytes()) is not None:
            return peak
        with contextlib.suppress(OSError, psutil.Error):
            self._resident_peak = _resident_peak(self.popen.pid) or self._resident_peak
        return self._resident_peak

    def raise_if_out_of_memory(self, stderr: str = "") -> None:
        """Call when the program failed; ``stderr`` (its last words) tells under RLIMIT_AS.

        Raises:
            DoesNotFit: it was stopped for memory.
        """
        refused = self._placement.address_space_bytes is not None and any(
            words in stderr.lower() for words in _OUT_OF_MEMORY
        )
        if self.oom_killed() or refused:
            raise self._error()

    def _error(self) -> DoesNotFit:
        allowed = self.limits.memory_bytes or 0
        in_force = getattr(self, "in_force", None)
        if in_force is not None and in_force.memory_bytes is not None:
            allowed = in_force.memory_bytes
        return DoesNotFit(
            f"the work does not fit: {allowed} bytes ({allowed / 1e6:.0f} MB) of memory are allowed,"
            " more than that needed. Take a smaller batch or length, or a profile with more memory."
        )

    def close(self) -> None:
        """Stop the program if it runs, keep its counters, remove its groups. May be called twice."""
        if self._final is not None:
            return
        try:
            if self._process is not None:
                self.peak_bytes()
                _stop(self._process)
        finally:
            self._final = (self._placement.oom_kills(), self._placement.peak_bytes() or self._resident_peak)
            if self._keeper is not None:
                os.close(self._keeper)
                self._keeper = None
            self._placement.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class LimitedRun:
    """A program that ended: its status, what it wrote, what limited it."""

    returncode: int
    stdout: bytes
    stderr: bytes
    in_force: InForce
    peak_bytes: int | None = field(default=None)


def run_limited(
    argv: Sequence[str],
    limits: Limits,
    *,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float | None = None,
    backends: Sequence[Prepare] = BACKENDS,
) -> LimitedRun:
    """Run ``argv`` to its end under ``limits``; a status other than 0 is the caller's to judge.

    Raises:
        DoesNotFit: it was stopped for memory.
        EdgepeftError: it did not end within ``timeout_s``.
    """
    with LimitedProcess(argv, limits, env=env, cwd=cwd, stderr=subprocess.PIPE, backends=backends) as process:
        try:
            out, err = process.popen.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EdgepeftError(f"{argv[0]} did not end within {timeout_s:g} s and was stopped.") from error
        status = process.popen.returncode
        if status != 0:
            process.raise_if_out_of_memory(err.decode(errors="replace"))
        return LimitedRun(status, out, err, process.in_force, process.peak_bytes())


def _lines_until_end(file: IO[bytes]) -> list[bytes]:
    """Everything up to the pipe's end; a launcher that hangs (a password prompt) counts as silent."""
    content = b""
    while select.select([file], [], [], _START_SECONDS)[0]:
        if not (part := os.read(file.fileno(), 1 << 16)):
            break
        content += part
    return content.splitlines(keepends=True)


def _resident_peak(pid: int) -> int | None:
    """VmHWM of a living process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _stop(process: subprocess.Popen[Any]) -> None:
    """Kill if it runs, collect its status, close our ends of its pipes."""
    if process.poll() is None:
        process.kill()  # a paused process dies of SIGKILL too
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # what was buffered for a dead reader
                stream.close()

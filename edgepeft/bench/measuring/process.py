"""The parent's side of a worker: started under the profile's limits, sent one request at a time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import edgepeft
from edgepeft.bench.measuring.sampler import Sample
from edgepeft.bench.planning.job import Job
from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import InForce, Limits

_SPAN_S = 3.0  # 30 periods of the quota: what its first and last one distort is under 2 %
_RAISED_AGAIN = {"UsageError": UsageError, "UnknownName": UsageError, "DoesNotFit": DoesNotFit}


class WorkerProcess:
    """One unit in a process of its own; between calls it waits and uses no processor.

    Raises (every method): ``DoesNotFit`` when the memory limit was hit, ``EdgepeftError`` with the
    worker's last words when it ended otherwise.
    """

    def __init__(self, label: str, job: Job, limits: Limits, *, throttled: bool = True, python: str = ""):
        """``throttled``: a quota holds from the start; else it waits for ``throttle``, as loading is not measured.

        ``python``: the interpreter, where it is not ours.
        """
        self.label = label
        self._limits = limits
        # Its standard error, in a file: a full pipe without a reader would block it.
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = LimitedProcess(
            # -P: a checkout in the current folder must not come before the package that is meant.
            [python or sys.executable, "-P", "-m", "edgepeft.bench.measuring.worker"],
            limits,
            env=_environment(job.threads, job.package),
            stderr=self._said,
            text=True,
        )
        self.in_force: InForce = self._process.in_force  # as the kernel reports it, in the end with what it lost
        self._span: float | None = None
        self._waiting = None if throttled else self.in_force.cpu_quota
        if self._waiting is not None:
            # Not lifted altogether: a thread pool that sees a quota when it starts does not spin.
            self._process.change_quota(float(max(1, self.in_force.cores)))
        self._ask(job.to_json())
        self.notes: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.popen.pid

    def ready(self) -> None:
        """Wait until the model is loaded."""
        self.notes = tuple(self._answer()["notes"])

    def throttle(self) -> None:
        """Put the quota of the limits in force; from now on a step is the mean over ``_SPAN_S``."""
        if self._waiting is not None:
            self.change_quota(self._waiting)
            self._waiting, self._span = None, _SPAN_S

    def change_quota(self, cores: float) -> float:
        """Set another quota; return the one in force."""
        return self._process.change_quota(cores)

    def step(self, batch: int) -> Sample:
        """Do one unit of work on batch number ``batch``."""
        self._ask(json.dumps({"step": batch, "span_s": self._span}))
        answer = self._answer()
        each = tuple(map(float, answer.get("each", ())))
        return Sample(float(answer["seconds"]), float(answer["cpu_seconds"]), each, int(answer.get("repeats", 1)))

    def finish(self) -> int:
        """End the worker in good order; return its peak resident size in bytes."""
        if (lost := self._process.lost()) is not None:
            self.notes = (*self.notes, f"limits were lost: {lost}")
            self.in_force = replace(self.in_force, emulation="partial", notes=(*self.in_force.notes, lost))
        self._ask(json.dumps({"close": True}))
        peak = int(self._answer()["peak_rss_bytes"])
        self._process.popen.wait()
        return peak

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        self._said.close()

    def _ask(self, line: str) -> None:
        stdin = self._process.popen.stdin
        assert stdin is not None
        try:
            stdin.write(line + "\n")
            stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.popen.stdout
        assert stdout is not None
        line = stdout.readline()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._ended() from None
        if "error" not in answer:
            return answer
        kind, message = answer["error"]["kind"], answer["error"]["message"]
        if kind == "memory":
            raise self._too_large(message)
        if kind in _RAISED_AGAIN:
            raise _RAISED_AGAIN[kind](message)
        raise EdgepeftError(f"the benchmark of {self.label} failed: {message}")

    def _ended(self) -> EdgepeftError:
        """The error that explains why no answer came."""
        status = self._process.popen.wait()
        self._said.seek(0)
        words = self._said.read().strip()
        try:
            self._process.raise_if_out_of_memory(words)
        except DoesNotFit:
            return self._too_large("the process was stopped for memory")
        last = f"; it last said: {words.splitlines()[-1][:500]}" if words else ""
        killed = "; was the host out of memory? --engine and --task measure fewer at once" if status == -9 else ""
        return EdgepeftError(f"the benchmark of {self.label} ended unexpectedly (status {status}){last}{killed}")

    def _too_large(self, reason: str) -> DoesNotFit:
        allowed = self.in_force.memory_bytes or self._limits.memory_bytes
        limit = f"{allowed} bytes ({allowed / 1e6:.0f} MB) of memory are allowed" if allowed else "the host is full"
        return DoesNotFit(
            f"{self.label}: {limit}, more than that needed ({reason[:300]}). "
            "Take a smaller --batch-size or --length, or a profile with more memory."
        )


def _environment(threads: int, package: str) -> dict[str, str]:
    """Thread counts for libraries that look there, no telemetry, no network, our package or another on the path."""
    package = package or str(Path(edgepeft.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "ORT_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }

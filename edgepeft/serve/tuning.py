"""Fine-tuning over HTTP: one run at a time, in a process of its own that gives way to the service."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepeft.common.errors import EdgepeftError
from edgepeft.data.training_loop.checkpoint import claim, discard
from edgepeft.serve.problems import Refused, fault, refusal_of
from edgepeft.serve.schemas import TuneRequest

if TYPE_CHECKING:
    from edgepeft.data.training_loop.run import Progress

log = logging.getLogger("edgepeft.serve")

_NICE = 10  # the service's own threads come first
_MAX_KEPT = 32  # finished runs that can still be asked about
_STOP_S = 10.0
_ROWS_FILE = "rows.jsonl"
_FAILED = "the run failed; the service's log says why."


@dataclass
class _Run:
    """The one that is under way; ``process`` is None until it has been started."""

    job: str
    task: str
    process: Any = None
    stopping: bool = False
    begun: bool = False  # it has reported progress: the checkpoints that exist are its own
    over: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ask its process to end, at the latest when it has been started."""
        self.stopping = True
        if self.process is not None:
            self.process.terminate()


class Jobs:
    """The runs of one service."""

    def __init__(self, bundle: Path, threads: int | None) -> None:
        self._bundle, self._threads = bundle, threads
        self.done: Callable[[], object] = lambda: None  # called when a run has ended well, from a thread of its own
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._running: _Run | None = None
        self._lock = threading.Lock()  # held for moments only: the event loop's thread takes it too

    def start(self, task: str, request: TuneRequest) -> dict[str, Any]:
        """Begin a run, in a thread of its own: a process takes seconds to start on a small board."""
        with self._lock:
            if self._running is not None:
                raise Refused(409, "busy", "a run is under way; stop it or wait.", {"Retry-After": "10"})
            run = _Run(secrets.token_hex(8), task)
            threading.Thread(target=self._watch, args=(run, request), daemon=True).start()
            self._running = run
            state = {"job": run.job, "task": task, "state": "running", "phase": "starting", "done": 0, "total": 0}
            self._states[run.job] = state
            while len(self._states) > _MAX_KEPT:
                self._states.popitem(last=False)
            return dict(state)

    def state(self, job: str) -> dict[str, Any]:
        """How a run stands."""
        with self._lock:
            if job not in self._states:
                raise Refused(404, "unknown_job", "there is no such run.")
            return dict(self._states[job])

    def stop(self, job: str) -> dict[str, Any]:
        """End a run, and the bundle stays as it was; one whose result is just being put in force ends as done."""
        state = self.state(job)
        with self._lock:
            if self._running is not None and self._running.job == job:
                self._running.stop()
        return state

    def close(self) -> None:
        """End the run that is under way."""
        with self._lock:
            if (run := self._running) is None:
                return
            run.stop()
        if not run.over.wait(_STOP_S) and run.process is not None:
            run.process.kill()
            run.over.wait(_STOP_S)

    def _watch(self, run: _Run, request: TuneRequest) -> None:
        """From a run's beginning to its end; whatever becomes of it, the next may start."""
        ended = _failed("internal", _FAILED)
        try:
            with tempfile.TemporaryDirectory(prefix="edgepeft-tune.") as folder:
                ended = self._ended(run, request, Path(folder))
            if ended["state"] == "done":
                self.done()
        except Exception:
            log.exception("task %s: the run failed", run.task)
        finally:
            with self._lock:
                self._states.get(run.job, {}).update(ended)
                self._running = None
            run.over.set()

    def _ended(self, run: _Run, request: TuneRequest, folder: Path) -> dict[str, Any]:
        """Start its process and follow it: how it ended, shown when the process is gone and the next may start."""
        data = folder / _ROWS_FILE
        data.write_text("".join(f"{json.dumps(row.in_file)}\n" for row in request.rows), encoding="utf-8")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        asked = {"asked": request.model_dump(exclude={"rows"}), "rows": str(data), "threads": self._threads}
        process = context.Process(target=_work, args=(theirs, str(self._bundle), run.task), kwargs=asked, daemon=True)
        with ours:
            with theirs:
                process.start()
            with self._lock:
                run.process = process
                if run.stopping:
                    run.stop()
            try:
                ended = self._reported(run, ours)
            except BaseException:  # the next run must not start beside it
                process.kill()
                process.join()
                raise
        process.join()
        if ended is None and run.stopping:
            ended = {"state": "stopped"}
        elif ended is None and process.exitcode == -signal.SIGKILL:
            ended = _failed("killed", "the run was killed; the memory may not have been enough.")
        ended = ended or _failed("internal", _FAILED)
        if ended["state"] != "done":
            # Its checkpoints, which no run can continue; not those of another process' run, nor of one before.
            with contextlib.suppress(EdgepeftError, OSError), claim(self._bundle, run.task) as work:
                if run.begun:
                    discard(work)
        return ended

    def _reported(self, run: _Run, pipe: Connection) -> dict[str, Any] | None:
        """Keep its state up to date until it says how it ended; None where it did not."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                report: dict[str, Any] = pipe.recv()
                if "state" in report:
                    return report
                run.begun = True
                with self._lock:
                    self._states.get(run.job, {}).update(report)
        return None


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"state": "failed", "error": fault(code, message)}


def _work(pipe: Connection, bundle: str, task: str, *, asked: dict[str, Any], rows: str, threads: int | None) -> None:
    """The run itself, in the child; says how it goes.  SIGTERM ends it, until its result is put in force."""
    from edgepeft.options.verbs import TuneOptions
    from edgepeft.tuning.tune import tune_task

    def watch(progress: Progress) -> None:
        if progress.phase == "commit":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the whole process; a mask is of one thread
        report = {name: getattr(progress, name) for name in ("phase", "done", "total", "loss", "score")}
        pipe.send({name: value for name, value in report.items() if value is not None})

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the group; the service sends SIGTERM
    os.nice(_NICE)
    data = Path(rows)
    try:
        options = TuneOptions(bundle=bundle, task=task, data=data, force=True, threads=threads, **asked)
        result = tune_task(options, watch=watch)
        training = {name: result.training.get(name) for name in ("steps", "best_step", "template")}
        outcome = {"replaced": result.entry is not None, "metrics": result.metrics, "training": training}
        pipe.send({"state": "done", "phase": "done", "result": outcome})
    except EdgepeftError as error:
        pipe.send({"state": "failed", "error": _shown(error, task, data, bundle)})
    finally:
        shutil.rmtree(data.parent, ignore_errors=True)  # a service that was killed does not


def _shown(error: EdgepeftError, task: str, data: Path, bundle: str) -> dict[str, str]:
    """The message, unless it names a file of the bundle: most say what is wrong with the rows that the client sent."""
    message = str(error).replace(str(data), "rows")
    if bundle in message or str(data.parent) in message:
        refused = refusal_of(error, task)
        return fault(refused.code, refused.message)
    return fault("tuning_failed", message)

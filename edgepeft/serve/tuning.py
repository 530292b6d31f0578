"""Fine-tuning over HTTP: one run at a time, in a process of its own that gives way to the service."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edgepeft.errors import EdgepeftError
from edgepeft.serve.problems import Refused, explain, fault
from edgepeft.serve.schemas import TuneRequest

__all__ = ["Jobs"]

_NICE = 10  # the service's own threads come first
_MOST_KEPT = 32  # finished runs that can still be asked about
_STOP_S = 10.0
_ROWS_FILE = "rows.jsonl"


class Jobs:
    """The runs of one service."""

    def __init__(self, bundle: Path, threads: int | None) -> None:
        self._bundle, self._threads = bundle, threads
        self._done: Callable[[], object] = lambda: None
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._running: tuple[str, Any, threading.Thread] | None = None
        self._lock = threading.Lock()

    def on_done(self, call: Callable[[], object]) -> None:
        """Call it when a run has ended well; from a thread of its own."""
        self._done = call

    def start(self, task: str, request: TuneRequest) -> dict[str, Any]:
        """Begin a run.

        Raises:
            Refused: one is running.
        """
        with self._lock:
            if self._running is not None:
                raise Refused(409, "busy", "a run is under way; stop it or wait.", {"Retry-After": "10"})
            job = secrets.token_hex(8)
            state = {"job": job, "task": task, "state": "running", "phase": "starting", "done": 0, "total": 0}
            self._states[job] = state
            while len(self._states) > _MOST_KEPT:
                self._states.popitem(last=False)
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe(duplex=False)
            asked = (str(self._bundle), task, request.model_dump(), self._threads)
            process = context.Process(target=_work, args=(theirs, *asked), daemon=True)
            process.start()
            theirs.close()
            watcher = threading.Thread(target=self._watch, args=(job, process, ours), daemon=True)
            self._running = (job, process, watcher)
            watcher.start()
            return dict(state)

    def state(self, job: str) -> dict[str, Any]:
        """How a run stands.

        Raises:
            Refused: there is none of that name.
        """
        with self._lock:
            if job not in self._states:
                raise Refused(404, "unknown_job", "there is no such run.")
            return dict(self._states[job])

    def stop(self, job: str) -> dict[str, Any]:
        """End a run; the bundle stays as it was.

        Raises:
            Refused: there is none of that name.
        """
        state = self.state(job)
        with self._lock:
            if self._running is not None and self._running[0] == job:
                self._running[1].terminate()
        return state

    def close(self) -> None:
        """End the run that is under way."""
        with self._lock:
            running = self._running
        if running is None:
            return
        _, process, watcher = running
        process.terminate()
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
        watcher.join(_STOP_S)

    def _watch(self, job: str, process: Any, pipe: Connection) -> None:
        state = "stopped"
        with contextlib.suppress(EOFError, OSError):
            while True:
                told = pipe.recv()
                state = told.pop("state", state)  # shown when the process is gone and the next may start
                with self._lock:
                    self._states.get(job, {}).update(told)
        process.join()
        if state == "done":
            self._done()
        with self._lock:
            if state == "stopped":
                killed = process.exitcode == -signal.SIGKILL
                error = fault("killed", "the run was killed; the memory may not have been enough.") if killed else None
                state = "failed" if killed else "stopped"
                self._states.get(job, {}).update({"error": error} if error else {})
            self._states.get(job, {})["state"] = state
            self._running = None


def _work(pipe: Connection, bundle: str, task: str, asked: dict[str, Any], threads: int | None) -> None:
    """The run itself, in the child; says how it goes."""
    from edgepeft.runtime.tuning.options import TuneOptions
    from edgepeft.runtime.tuning.subject import Files
    from edgepeft.runtime.tuning.tune import tune

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the group; the service tells us
    os.nice(_NICE)
    request = TuneRequest.model_validate(asked)
    options = TuneOptions(
        steps=request.steps,
        epochs=request.epochs,
        learning_rate=request.lr,
        head_learning_rate=request.head_lr,
        batch_size=request.batch_size,
        seed=request.seed,
    )
    # Stopped by SIGTERM: the folder is removed by nobody else.
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-tune."))

    def stop(*_: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        data = folder / _ROWS_FILE
        data.write_text("".join(_line(row.text, row.second, row.label) for row in request.rows), encoding="utf-8")
        result = tune(
            Path(bundle),
            task,
            Files(data, None, None),
            options,
            template=request.template,
            force=True,
            threads=threads,
            watch=lambda p: pipe.send(
                {"phase": p.phase, "done": p.done, "total": p.total, "loss": p.loss, "score": p.score}
            ),
        )
        told = {"replaced": result.entry is not None, "metrics": result.tuned.metrics, "training": _plain(result)}
        pipe.send({"state": "done", "phase": "done", "result": told})
    except EdgepeftError as error:
        pipe.send({"state": "failed", "error": _told(error, task, folder, bundle)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _line(text: str, second: str | None, label: str | int | float) -> str:
    row = {"sentence1": text, "label": label} | ({} if second is None else {"sentence2": second})
    return json.dumps(row) + "\n"


def _plain(result: Any) -> dict[str, Any]:
    wanted = ("steps", "best_step", "template")
    return {name: result.tuned.training.get(name) for name in wanted}


def _told(error: EdgepeftError, task: str, folder: Path, bundle: str) -> dict[str, str]:
    """The message, unless it names a file of the bundle: most say what is wrong with the rows that the client sent."""
    message = str(error).replace(str(folder / _ROWS_FILE), "rows")
    if bundle in message or str(folder) in message:
        refused = explain(error, task)
        return fault(refused.code, refused.message)
    return fault("tuning_failed", message)

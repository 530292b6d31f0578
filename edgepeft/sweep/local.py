"""Cells on this machine: a process for each run, as many at once as there are cores or GPUs.

Processes come from a server that has PyTorch and transformers loaded (forkserver), so that a run costs no import.  One
that dies is started again from its checkpoint; all end, with a checkpoint, when the sweep does.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from edgepeft.common.atomic import disk_errors, replacing
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.own_folder import held_folder, own_folder
from edgepeft.data.training_loop.checkpoint import Diverged
from edgepeft.data.training_loop.run import Interrupted, Progress
from edgepeft.options.verbs import TrainRequest
from edgepeft.sweep.folder import ANSWERS_FILE, RUNS, Cell, Outcome, Sweep
from edgepeft.training.devices import use_threads
from edgepeft.training.loop import train_delta
from edgepeft.training.settings import resolve_request

RETRIES = 2  # of a run whose process dies
_PRELOADED = ["edgepeft.sweep.local", "transformers.models.auto.modeling_auto"]  # the second takes 2 s, and is lazy
_EVERY_S = 0.5  # between two messages of a run
_GRACE_S = 120.0  # for a run to write its checkpoint
_OTHERS_S = 600.0  # what a sweep that was killed left running sees to its end within, or writes a checkpoint


@dataclass(frozen=True)
class CellRun:
    """A cell and how it is computed."""

    sweep: Sweep
    cell: Cell
    threads: int = 1
    until: int | None = None  # the step at which it stops
    gpu: int | None = None  # its number
    keep_tensors: bool = True
    shared: Path | None = None  # the folder of hidden states that cells have in common; None is the sweep's own


class Moved(NamedTuple):
    """A run got on."""

    job: CellRun
    progress: Progress


class Ended(NamedTuple):
    """A run is over, or came to where it was to stop (neither outcome nor error), or cannot be computed."""

    job: CellRun
    outcome: Outcome | None = None
    error: str | None = None


@dataclass
class _Running:
    job: CellRun
    process: ForkServerProcess
    connection: Connection
    tries: int

    def said(self) -> Moved | Ended:
        """What it has just said, or that it died."""
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ended(self.job)
        return Moved(self.job, found) if isinstance(found, Progress) else Ended(self.job, *found)


def run_local(jobs: Sequence[CellRun], workers: int, gpus: int = 0) -> Iterator[Moved | Ended]:
    """Compute the jobs, in their order, ``workers`` at once; with GPUs these share them evenly.

    Left early, by an exception in the loop that it feeds too, it has every run write a checkpoint and end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # The server starts here: Ctrl-C is the sweep's while it imports, too, which takes seconds.
    resource_tracker.ensure_running()  # which lets the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as what is started has it
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    left, running, free = list(jobs), list[_Running](), [n % gpus for n in range(workers)] if gpus else []
    try:
        while left or running:
            while left and len(running) < workers:
                job = left.pop(0)
                yield Moved(job, Progress("loading", 0, 0))
                running.append(_started(context, replace(job, gpu=free.pop(0)) if gpus else job))
            ready = wait([each.connection for each in running])  # they said something, or their ends are closed
            for each in [each for each in running if each.connection in ready]:
                said = each.said()
                if isinstance(said, Ended):
                    running.remove(each)
                    each.connection.close()
                    each.process.join()
                    if said.error is None and said.outcome is None and each.process.exitcode:
                        if each.tries < RETRIES:
                            running.append(_started(context, each.job, each.tries + 1))
                            continue
                        code = each.process.exitcode
                        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                        why = "where that is SIGKILL, memory may be short: give fewer --workers."
                        said = said._replace(error=f"its process {how}, {RETRIES + 1} times; {why}")
                    free += [each.job.gpu] if each.job.gpu is not None else []
                yield said
    finally:
        _end(running)


def _started(context: multiprocessing.context.ForkServerContext, job: CellRun, tries: int = 0) -> _Running:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs), daemon=False)
    process.start()
    theirs.close()
    return _Running(job, process, ours, tries)


def _end(running: Sequence[_Running]) -> None:
    for each in running:
        each.process.terminate()
    ends = time.monotonic() + _GRACE_S
    for each in running:
        # What it still says must be read: a full pipe would hold it up.
        while each.process.is_alive() and time.monotonic() < ends:
            with contextlib.suppress(EOFError, OSError):
                if each.connection.poll(0.1):
                    each.connection.recv()
        each.process.kill()
        each.process.join()
        each.connection.close()


def _work(job: CellRun, connection: Connection) -> None:
    """In a process of its own: compute, and say how it goes; a sweep that is gone is one that stopped.

    What there is to note of rows and backbone was said when the plan was checked.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"edgepeft\.")
    asked, last = False, 0.0

    def ask(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def watch(progress: Progress) -> None:
        nonlocal asked, last
        if time.monotonic() - last < _EVERY_S:
            return
        last = time.monotonic()
        try:
            connection.send(progress)
        except OSError:
            asked = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's, which then asks by SIGTERM
    signal.signal(signal.SIGTERM, ask)
    found: tuple[Outcome | None, str | None]
    try:
        found = compute(job, watch, lambda: asked), None
    except Interrupted:
        return
    except EdgepeftError as error:
        found = None, str(error)
    with contextlib.suppress(OSError):
        connection.send(found)


def compute(job: CellRun, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> Outcome | None:
    """Run the cell in its folder, from its last checkpoint where there is one; the outcome is written down too.

    None: it has come to ``until``.
    """
    if job.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(job.gpu)
    use_threads(job.threads)
    sweep, cell = job.sweep, job.cell
    with disk_errors(sweep.run(cell)):
        sweep.run(cell).parent.mkdir(parents=True, exist_ok=True)
        for names in ((RUNS, cell.name), (sweep.shared.name,)):
            with contextlib.suppress(FileNotFoundError), own_folder(sweep.folder, *names, deep=True):
                pass
    with held_folder(sweep.folder, RUNS, f".{cell.name}", wait_s=_OTHERS_S):
        return sweep.outcome(cell) or _run(job, watch, stop)


def _run(job: CellRun, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> Outcome | None:
    """As ``compute``, in a folder that no other process has."""
    sweep, cell, start, first, at = job.sweep, job.cell, time.perf_counter(), -1, 0

    def seen(progress: Progress) -> None:
        nonlocal first, at
        if progress.phase == "train":
            at = progress.done
            first = at - 1 if first < 0 else first
        watch(progress)

    def due() -> bool:
        return stop() or (job.until is not None and job.until <= at < cell.steps)

    try:
        found = resolve_request(TrainRequest.model_validate(sweep.options(cell)))
        resume = sweep.state(cell) == "begun"
        how: dict[str, Any] = {"resume": resume, "force": not resume, "shared": job.shared or sweep.shared}
        how |= {"watch": seen, "stop": due}
        result = train_delta(found.request.backbone, found.method, found.rows(), found.request, sweep.run(cell), **how)
    except Interrupted:
        if stop():
            raise
        return None
    except Diverged as diverged:
        sweep.forget_checkpoints(cell)  # and the best tensors, which the error names
        why = str(diverged.__cause__ or diverged)
        outcome = Outcome("diverged", time.perf_counter() - start, reason=why)
    else:
        tested = {name: np.asarray(values) for name, values in result.tested.items()}
        if any(values.dtype.hasobject for values in tested.values()):  # which could not be read without unpickling
            tested = {}
        with replacing(sweep.run(cell) / ANSWERS_FILE) as new, new.open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **tested)
        outcome = sweep.done(cell, time.perf_counter() - start, max(first, 0))
        if not job.keep_tensors:
            sweep.forget_tensors(cell)
    sweep.end(cell, outcome)
    return outcome

"""What computes one cell of a sweep: a training run in its folder, from its last checkpoint where there is one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgepeft.common.atomic import disk_errors, locked, replacing
from edgepeft.data.training_loop.divergence import Diverged
from edgepeft.data.training_loop.run import Interrupted, Progress
from edgepeft.sweep.folder import ANSWERS_FILE, Cell, Outcome, Sweep
from edgepeft.training.loop import TrainResult, train
from edgepeft.training.output import prepare_output
from edgepeft.training.request import Request

__all__ = ["Job", "compute"]

_OTHERS_S = 600.0  # what a sweep that was killed left running sees to its end within, or writes a checkpoint


@dataclass(frozen=True)
class Job:
    """A cell and how it is computed: in ``threads``, up to step ``until``, on the GPU of number ``gpu``.

    ``shared`` has the hidden states that cells have in common; None is the sweep's own folder.
    """

    sweep: Sweep
    cell: Cell
    threads: int = 1
    until: int | None = None
    gpu: int | None = None
    keep_tensors: bool = True
    shared: Path | None = None


def compute(job: Job, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> Outcome | None:
    """Run the cell, or the rest of it; the outcome is written down too.  None: it has come to ``until``.

    Raises:
        Interrupted: ``stop`` returned True; a checkpoint is written.
        EdgepeftError: as ``edgepeft.training.loop.train``.
    """
    if job.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(job.gpu)
    torch.set_num_threads(job.threads)
    sweep, cell = job.sweep, job.cell
    lock = (folder := sweep.run(cell)).parent / f".{cell.name}"
    with disk_errors(folder):
        lock.mkdir(parents=True, exist_ok=True)
    with locked(lock, _OTHERS_S):
        found = sweep.outcome(cell) or _run(job, watch, stop)
    with contextlib.suppress(OSError):  # another process waits for it
        lock.rmdir()
    return found


def _run(job: Job, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> Outcome | None:
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
        result = _trained(job, seen, due)
    except Interrupted:
        if stop():
            raise
        return None
    except Diverged as diverged:
        sweep.forget_checkpoints(cell)  # and the best tensors, which the error names
        why = str(diverged.__cause__ or diverged)
        outcome = Outcome("diverged", time.perf_counter() - start, reason=why)
    else:
        with replacing(sweep.run(cell) / ANSWERS_FILE) as new, new.open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **_plain(result))
        outcome = sweep.done(cell, time.perf_counter() - start, max(first, 0))
        if not job.keep_tensors:
            sweep.forget_tensors(cell)
    sweep.end(cell, outcome)
    return outcome


def _trained(job: Job, watch: Callable[[Progress], None], stop: Callable[[], bool]) -> TrainResult:
    folder = job.sweep.run(job.cell)
    begun = Request.model_validate(job.sweep.options(job.cell)).begun()
    resume = job.sweep.state(job.cell) == "begun"
    prepare_output(folder, resume=resume, force=not resume)
    how: dict[str, Any] = {"resume": resume, "force": not resume, "watch": watch, "stop": stop}
    how["shared"] = job.shared or job.sweep.shared
    return train(begun.request.backbone, begun.method, begun.rows(), begun.options, folder, **how)


def _plain(result: TrainResult) -> dict[str, NDArray[Any]]:
    """Targets and outputs as arrays that are read without unpickling; nothing where they are none."""
    found = {name: np.asarray(values) for name, values in result.tested.items()}
    return {} if any(values.dtype.hasobject for values in found.values()) else found

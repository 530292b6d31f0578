"""Running a sweep: what is open, in rungs where rates are halved, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import mean

from edgepeft.common.errors import UsageError
from edgepeft.common.own_folder import locked
from edgepeft.data.training_loop.checkpoint import best_score
from edgepeft.data.training_loop.run import Progress
from edgepeft.sweep.folder import SWEEP_FILE, Cell, Outcome, Sweep, open_sweep
from edgepeft.sweep.local import Ended, Job, Moved

__all__ = ["Shown", "estimate", "fold", "require_halvable", "run_sweep"]

RUNGS = (0.25, 0.5)  # of a run's steps, after which half of a method's runs go no further
Executor = Callable[[Sequence[Job]], Iterator[Moved | Ended]]
_OTHERS_S = 2.0


@dataclass(frozen=True)
class Shown:
    """Told while a sweep runs: how many cells are over, of how many; a cell that moved or ended, and how."""

    done: int
    total: int
    cell: Cell
    progress: Progress | None = None
    outcome: Outcome | None = None
    error: str | None = None


def run_sweep(
    sweep: Sweep, executor: Executor, like: Job, *, halve: bool = False, watch: Callable[[Shown], None]
) -> dict[str, str]:
    """Compute every cell that is not over; gives the reason of each that could not be, by its name.

    Args:
        sweep: its cells; an earlier run of the same folder goes on.
        executor: takes jobs and tells how they go.
        like: a job whose settings all have, but for the cell.
        halve: have half of each method's runs go no further after each of ``RUNGS``.
        watch: is told how it goes.
    """
    if halve:
        require_halvable(sweep)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with locked(sweep.folder, _OTHERS_S):
        if (sweep.folder / SWEEP_FILE).is_file():
            sweep.require_sources(open_sweep(sweep.folder).sources)
        sweep.write()
        failed: dict[str, str] = {}
        like = replace(like, sweep=replace(sweep, cells=()))  # a job goes to its process without all others
        for rung in RUNGS if halve else ():
            jobs = [replace(like, cell=cell, until=_until(cell, rung)) for cell in _left(sweep, rung)]
            _run(sweep, failed, executor, jobs, watch)
            _drop(sweep)
        _run(sweep, failed, executor, [replace(like, cell=cell) for cell in _left(sweep)], watch)
        if not _left(sweep):
            sweep.forget_shared()
    return failed


def fold(sweep: Sweep) -> Sweep:
    """The sweep with its runs as lines of ``results.jsonl``, as ``Sweep.folded``."""
    with locked(sweep.folder, _OTHERS_S):
        return sweep.folded()


def _until(cell: Cell, rung: float) -> int:
    """The first evaluation from that part of the steps on."""
    return math.ceil(rung * cell.steps / cell.interval) * cell.interval


def _left(sweep: Sweep, rung: float | None = None) -> list[Cell]:
    """The cells that are not over, or have not come to that rung."""
    cells = [cell for cell in sweep.cells if sweep.outcome(cell) is None]
    return [cell for cell in cells if rung is None or _step(sweep, cell) < _until(cell, rung)]


def _step(sweep: Sweep, cell: Cell) -> int:
    newest = sweep.checkpoint(cell)
    return int(newest.name.split(".")[0]) if newest else 0


def _run(
    sweep: Sweep, failed: dict[str, str], executor: Executor, jobs: Sequence[Job], watch: Callable[[Shown], None]
) -> None:
    jobs = [job for job in jobs if job.cell.name not in failed]
    over = sum(sweep.outcome(cell) is not None for cell in sweep.cells)
    for told in executor(jobs):
        if isinstance(told, Moved):
            watch(Shown(over, len(sweep.cells), told.job.cell, told.progress))
            continue
        if told.error is not None:
            failed[told.job.cell.name] = told.error
        over += told.outcome is not None
        watch(Shown(over, len(sweep.cells), told.job.cell, None, told.outcome, told.error))


def require_halvable(sweep: Sweep) -> None:
    """See that some method has several runs to choose among, and that they are evaluated before their end."""
    if all(len(arms) == 1 for arms in _arms(sweep.cells)):
        raise UsageError(
            "--halve drops a method's worse rates and settings early, and here each method has one of each; leave it "
            'out, or give the plan more: learning_rates = ["1x", "3x", "10x"].'
        )
    if all(_until(cell, RUNGS[-1]) >= cell.steps for cell in sweep.cells):
        raise UsageError(
            "--halve judges runs at half of their steps, and no run is evaluated before its end; more steps?"
        )


def _arms(cells: Sequence[Cell]) -> list[list[list[Cell]]]:
    """Groups of what competes: settings and rates of one method on one data set, each with all its seeds."""

    def group(cell: Cell) -> tuple[str, ...]:
        return cell.backbone, cell.data, cell.size, cell.method.partition(":")[0]

    def arm(cell: Cell) -> tuple[str, float]:
        return cell.method, cell.rate

    found = []
    for _, members in groupby(sorted(cells, key=group), group):
        found.append([list(seeds) for _, seeds in groupby(sorted(members, key=arm), arm)])
    return found


def _drop(sweep: Sweep) -> None:
    """Let the worse half of each group go no further, by the mean of the seeds' best evaluation so far."""
    for arms in _arms(sweep.cells):
        scored = [(score, arm) for arm in arms if (score := _so_far(sweep, arm)) is not None]
        scored.sort(key=lambda each: -each[0])
        for score, arm in scored[math.ceil(len(scored) / 2) :]:
            for cell in arm:
                if sweep.outcome(cell) is None:
                    step = _step(sweep, cell)
                    sweep.forget_checkpoints(cell)
                    sweep.end(cell, Outcome("dropped", steps=step, score=score))


def _so_far(sweep: Sweep, arm: Sequence[Cell]) -> float | None:
    """The mean of the best evaluations of an arm's checkpoints; None where one of them is over or has none."""
    found = [sweep.checkpoint(cell) for cell in arm]
    scores = [None if path is None else best_score(path) for path in found]
    known = [score for score in scores if score is not None]
    return mean(known) if len(known) == len(scores) else None


def estimate(sweep: Sweep, workers: int) -> float | None:
    """Seconds that the open cells may take: those of runs that are done, step by step; None where none is."""
    done = [(cell, found) for cell in sweep.cells if (found := sweep.outcome(cell)) and found.seconds and found.steps]
    if not done:
        return None

    def a_step(cell: Cell) -> float:
        nearest = [each for each in done if (each[0].data, each[0].method) == (cell.data, cell.method)]
        nearest = nearest or [each for each in done if each[0].data == cell.data] or done
        return mean(found.seconds / max(1, found.steps - found.from_step) for _, found in nearest)

    return sum(a_step(cell) * cell.steps for cell in sweep.cells if sweep.outcome(cell) is None) / workers

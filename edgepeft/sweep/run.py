"""From a plan to its cells, all checked before the first one starts; and running what is open of them.

A cell is one combination of the plan: a run of ``edgepeft train``.  Where rates are halved, cells run in rungs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.own_folder import locked
from edgepeft.data.parts import SHAPE_OPTIONS, TaskData, complete_from_rows
from edgepeft.data.training_loop.checkpoint import best_score
from edgepeft.data.training_loop.run import evaluation_interval
from edgepeft.methods.base import Method, method_of
from edgepeft.options.verbs import TrainRequest
from edgepeft.sweep.folder import SWEEP_FILE, Cell, Outcome, Sweep, name_of, open_sweep
from edgepeft.sweep.local import CellRun, Ended, Moved
from edgepeft.sweep.plan import Plan, placed, rate_of, recorded, share_of_rows
from edgepeft.training.settings import resolve_request, run_identity, with_data_defaults

_OF_THE_GRID = ("backbone", "task", "method", "set", "seed", "lr", "few_shot", "curve")
RUNGS = (0.25, 0.5)  # of a run's steps, after which half of a method's runs go no further
_OTHERS_S = 2.0


def sweep_of(plan: Plan, folder: Path, watch: Callable[[int, int], None] = lambda _, __: None) -> Sweep:
    """The plan's cells, in the order in which they are run; ``watch`` gets how many of how many are checked."""
    made = _Grid(plan := recorded(plan, folder), folder)
    combinations = list(made.combinations())
    cells: dict[str, Cell] = {}
    for n, combination in enumerate(combinations, 1):
        cell = made.cell(combination)
        if cell.name in cells:
            raise UsageError(f"the plan has a run twice: {cells[cell.name]}, and {cell}. Leave one of them out.")
        cells[cell.name] = cell
        watch(n, len(combinations))
    return Sweep(folder, plan, tuple(cells.values()), made.sources)


class _Point(NamedTuple):
    backbone: str
    data: str
    size: int | str
    method: str
    rate: float
    seed: int


@dataclass
class _Grid:
    """The plan with what its cells share: backbones, methods and rows are read once; ``said`` is what the rows of each
    data set tell, which a cell's options then say."""

    plan: Plan
    folder: Path
    backbones: dict[str, Backbone] = field(default_factory=dict)
    methods: dict[str, Method] = field(default_factory=dict)
    rows: dict[Any, TaskData] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    def combinations(self) -> Iterator[_Point]:
        """Of the whole grid; all seeds of a cell's table entry follow each other."""
        plan, texts = self.plan, self.plan.all_methods
        self.methods = {text: method_of(text) for text in texts}
        for backbone, data, size, text in product(plan.backbones, plan.data, plan.sizes, texts):
            for rate, seed in product(plan.rates_of(text), plan.seeds):
                yield _Point(backbone, data, size, text, rate_of(rate, self.methods[text].learning_rate), seed)

    def cell(self, at: _Point) -> Cell:
        """One run, as ``train`` would have it."""
        try:
            backbone, method = self._backbone(at.backbone), self.methods[at.method]
            few = share_of_rows(at.size, len(self._rows(self._request(at)).train))
            request = self._request(at, few)
            rows, options = with_data_defaults(backbone, method, self._rows(request), resolve_request(request).request)
        except EdgepeftError as error:
            raise UsageError(f"{at.data}, {at.method}: {error}") from error
        per_epoch = math.ceil(len(rows.train) / options.batch_size)
        steps = options.total_steps(per_epoch)
        extent = len(rows.train), steps, evaluation_interval(per_epoch, steps)
        name = name_of(run_identity(backbone, method, rows, options))
        given = request.model_dump(mode="json", exclude_unset=True)
        return Cell(name, backbone.source, at.data, str(at.size), at.method, at.rate, at.seed, *extent, given)

    def _request(self, at: _Point, few: int | None = None) -> TrainRequest:
        given = {**self.plan.train, **self.plan.data[at.data]}
        if odd := [name for name in given if name in _OF_THE_GRID]:
            raise UsageError(
                f"{odd[0]} is of the whole grid: backbones, methods, learning_rates, seeds and sizes say it."
            )
        method = {"method": at.method.partition(":")[0], "set": self.methods[at.method].settings()}
        grid = {"backbone": at.backbone, "task": at.data, **method, "seed": at.seed, "lr": at.rate}
        given |= {**grid, **({} if few is None else {"few_shot": few})}
        request = TrainRequest.of(given, "edgepeft train")
        if at.data not in self.said:
            after = complete_from_rows(before := self._placed(request))
            self.said[at.data] = {n: new for n in SHAPE_OPTIONS if (new := getattr(after, n)) != getattr(before, n)}
        return request.model_copy(update=self.said[at.data])

    def _placed(self, request: TrainRequest) -> TrainRequest:
        return TrainRequest.model_validate(placed(request.model_dump(mode="json", exclude_unset=True), self.folder))

    def _backbone(self, source: str) -> Backbone:
        if source not in self.backbones:
            self.backbones[source] = opened = open_backbone(placed({"backbone": source}, self.folder)["backbone"])
            self.sources[f"backbone {opened.source}"] = opened.sha256
        return self.backbones[source]

    def _rows(self, request: TrainRequest) -> TaskData:
        """The rows of a request, which many have in common."""
        source = resolve_request(request).template.source
        drawn = None if request.few_shot is None else request.seed
        pattern = source.text if source else None  # Compacter's depends on the method
        key = (request.task, request.few_shot, drawn, pattern)
        if key not in self.rows:
            self.rows[key] = resolve_request(self._placed(request)).rows()
            if drawn is None:
                self.sources[f"data {request.task}{f' as {pattern!r}' if pattern else ''}"] = self.rows[key].sha256
        return self.rows[key]


Executor = Callable[[Sequence[CellRun]], Iterator[Moved | Ended]]


def run_sweep(
    sweep: Sweep, executor: Executor, like: CellRun, *, halve: bool = False, watch: Callable[[Moved | Ended], None]
) -> dict[str, str]:
    """Compute every cell that is not over, also those of an earlier run; the reason of each that could not be.

    ``watch`` gets what the executor says of the cells, as it comes.  Jobs are as ``like``, but for the cell.
    ``halve``: half of a method's runs go no further after each of ``RUNGS``.
    """
    failed: dict[str, str] = {}

    def run(jobs: Sequence[CellRun]) -> None:
        for said in executor([job for job in jobs if job.cell.name not in failed]):
            if isinstance(said, Ended) and said.error is not None:
                failed[said.job.cell.name] = said.error
            watch(said)

    if halve:
        require_halvable(sweep)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with locked(sweep.folder, _OTHERS_S):
        before = open_sweep(sweep.folder).sources if (sweep.folder / SWEEP_FILE).is_file() else {}
        for name, digest in sweep.sources.items():
            if (known := before.get(name, digest)) != digest:
                raise UsageError(
                    f"{name} changed since runs of {sweep.folder} were computed (sha256 {known[:12]} then, "
                    f"{digest[:12]} now). Restore it, or give another --out."
                )
        sweep.write()
        like = replace(like, sweep=replace(sweep, cells=()))  # a job goes to its process without all others
        for rung in RUNGS if halve else ():
            run([replace(like, cell=cell, until=_until(cell, rung)) for cell in _left(sweep, rung)])
            _drop(sweep)
        run([replace(like, cell=cell) for cell in _left(sweep)])
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


def require_halvable(sweep: Sweep) -> None:
    """See that some method has several runs to choose among, and that they are evaluated before their end."""
    if all(len(arms) == 1 for arms in _arms(sweep)):
        raise UsageError(
            "--halve drops a method's worse rates and settings early, and here each method has one of each; leave it "
            'out, or give the plan more: learning_rates = ["1x", "3x", "10x"].'
        )
    if all(_until(cell, RUNGS[-1]) >= cell.steps for cell in sweep.cells):
        raise UsageError(
            "--halve judges runs at half of their steps, and no run is evaluated before its end; more steps?"
        )


def _arms(sweep: Sweep) -> list[list[list[Cell]]]:
    """Groups of what competes: settings and rates of one method on one data set, each with all its seeds."""
    groups: dict[tuple[str, ...], dict[tuple[str, float], list[Cell]]] = {}
    for cell in sorted(sweep.cells, key=lambda cell: (cell.method, cell.rate)):
        group = groups.setdefault((cell.backbone, cell.data, cell.size, cell.method.partition(":")[0]), {})
        group.setdefault((cell.method, cell.rate), []).append(cell)
    return [list(group.values()) for group in groups.values()]


def _drop(sweep: Sweep) -> None:
    """Let the worse half of each group go no further, by the mean of the seeds' best evaluation so far."""
    for arms in _arms(sweep):
        scored = []
        for arm in arms:  # by their checkpoints, where none is over or has no evaluation
            found = [sweep.checkpoint(cell) for cell in arm]
            scores = [score for path in found if path is not None and (score := best_score(path)) is not None]
            if len(scores) == len(arm):
                scored.append((mean(scores), arm))
        scored.sort(key=lambda each: -each[0])
        for score, arm in scored[math.ceil(len(scored) / 2) :]:
            for cell in arm:
                if sweep.outcome(cell) is None:
                    step = _step(sweep, cell)
                    sweep.forget_checkpoints(cell)
                    sweep.end(cell, Outcome("dropped", steps=step, score=score))


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

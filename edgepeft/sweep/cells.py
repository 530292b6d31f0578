"""From a plan to its cells: every combination as a run of ``edgepeft train``, checked before the first one starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.messages import in_words
from edgepeft.data.parts import TaskData
from edgepeft.data.told import TOLD, told
from edgepeft.data.training_loop.run import evaluation_interval
from edgepeft.methods.base import Method, method_of
from edgepeft.options.train import TrainRequest
from edgepeft.sweep.folder import Cell, Sweep, name_of
from edgepeft.sweep.plan import Plan, placed, rate_of, recorded, share_of_rows
from edgepeft.training.loop import asked, resolved, settled

__all__ = ["sweep_of"]

_OF_THE_GRID = ("backbone", "task", "method", "set", "seed", "lr", "few_shot", "curve")


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
        plan = self.plan
        self.methods = {text: method_of(text) for text in plan.all_methods}
        for backbone, data, size in itertools.product(plan.backbones, plan.data, plan.sizes):
            for text in plan.all_methods:
                for rate in plan.rates_of(text):
                    for seed in plan.seeds:
                        numbers = rate_of(rate, self.methods[text].learning_rate), seed
                        yield _Point(backbone, data, size, text, *numbers)

    def cell(self, at: _Point) -> Cell:
        """One run, as ``train`` would have it."""
        try:
            backbone, method = self._backbone(at.backbone), self.methods[at.method]
            few = share_of_rows(at.size, len(self._rows(self._request(at)).train))
            request = self._request(at, few)
            rows, options = settled(backbone, method, self._rows(request), resolved(request).settings)
        except EdgepeftError as error:
            raise UsageError(f"{at.data}, {at.method}: {error}") from error
        per_epoch = math.ceil(len(rows.train) / options.batch_size)
        steps = options.total_steps(per_epoch)
        extent = len(rows.train), steps, evaluation_interval(per_epoch, steps)
        name = name_of(asked(backbone, method, rows, options))
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
        try:
            request = TrainRequest.model_validate({**given, **grid, **({} if few is None else {"few_shot": few})})
        except ValidationError as error:
            raise UsageError(f"{in_words(error)}; options of edgepeft train are meant, with _ for -.") from None
        if at.data not in self.said:
            before = self._placed(request)
            after = told(before)
            self.said[at.data] = {n: new for n in TOLD if (new := getattr(after, n)) != getattr(before, n)}
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
        source = resolved(request).template.source
        drawn = None if request.few_shot is None else request.seed
        pattern = source.text if source else None  # Compacter's depends on the method
        key = (request.task, request.few_shot, drawn, pattern)
        if key not in self.rows:
            self.rows[key] = resolved(self._placed(request)).rows()
            if drawn is None:
                self.sources[f"data {request.task}{f' as {pattern!r}' if pattern else ''}"] = self.rows[key].sha256
        return self.rows[key]

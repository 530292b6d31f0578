"""The table that a sweep makes: of each method the rate that the evaluation rows choose, and its test scores.

Beside the best of a column stands whether another is worse beyond chance, by the paired bootstrap over test rows
(Efron and Tibshirani, 1993): the share of resamples of the rows, the same for both, in which it is not worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bundle.card import DeltaCard
from edgepeft.common.frozen_random import uniform
from edgepeft.data.training_loop.baselines import SIGNIFICANT
from edgepeft.sweep.folder import Cell, Sweep

RESAMPLES = 1_000
TABLE_SCHEMA = "edgepeft.table/1"
Place = tuple[str, str, str]
"""Backbone, data set and size: what a column of the table is."""


@dataclass(frozen=True, eq=False)
class Arm:
    """One method at one rate on one data set: its runs that are done, one a seed, and what their cards say."""

    sweep: Sweep
    cells: tuple[Cell, ...]
    cards: tuple[DeltaCard, ...]
    method: str  # with its settings
    rate: float
    rows: int  # that trained
    metric: str
    parameters: int  # that are trained
    bytes: int  # of the delta's tensors
    chosen_by: float  # the mean score of the evaluation rows

    @classmethod
    def of(cls, sweep: Sweep, cells: Sequence[Cell]) -> Arm:
        """Read what runs of equal method and rate left."""
        cards, first = tuple(map(sweep.card, cells)), cells[0]
        metric, chosen_by = str(cards[0].metrics["metric"]), mean(float(card.metrics["eval"]) for card in cards)
        size = max((found.bytes for cell in cells if (found := sweep.outcome(cell))), default=0)
        facts = first.method, first.rate, first.rows, metric, cards[0].trainable_parameters, size, chosen_by
        return cls(sweep, tuple(cells), cards, *facts)

    @cached_property
    def tests(self) -> tuple[float, ...]:
        """The test scores, one a seed."""
        return tuple(float(card.metrics["test"]) for card in self.cards)

    @property
    def score(self) -> float:
        """The mean of the test scores."""
        return mean(self.tests)

    def __str__(self) -> str:
        """``93.21 ± 0.40 (3)``: the mean of so many seeds in percent, and its deviation."""
        spread = deviation(self.tests)
        return f"{100 * self.score:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f} ({len(self.tests)})")


@cache  # each other method of a column is compared with the same best
def resampled(arm: Arm, n: int) -> tuple[int, NDArray[np.float64]] | None:
    """How many test rows there are, and the mean of the seeds' scores in each of the ``n``-th ``RESAMPLES``; None
    where answers were not kept."""
    found = [arm.sweep.answers(cell) for cell in arm.cells]
    kept = [(card.task_kind, *each) for card, each in zip(arm.cards, found, strict=True) if each and len(each[0])]
    if len(kept) < len(found):
        return None
    size = len(kept[0][1])
    drawn = (uniform(f"bootstrap {n}", (RESAMPLES, size)) * size).astype(np.intp)
    scores = [mean(kind.score(arm.metric, t[rows], o[rows]) for kind, t, o in kept) for rows in drawn]
    return size, np.array(scores)


@dataclass(frozen=True)
class Column:
    """One data set at one size on one backbone: the arm that was chosen of each method, and all of them."""

    place: Place
    chosen: Mapping[str, Arm]
    arms: tuple[Arm, ...]

    @property
    def best(self) -> Arm:
        """The best test score."""
        return max(self.chosen.values(), key=lambda arm: arm.score)

    def baselines(self) -> dict[str, float]:
        """What each baseline scores; a head alone is not compared with itself."""
        found = {name: each for arm in self.arms for name, each in arm.cards[0].metrics["baselines"].items()}
        return {name: float(each["test"]) for name, each in found.items()}

    def worse(self) -> dict[str, float]:
        """Of each method that is worse than the best beyond chance, the share of resamples that have it otherwise."""
        others = {name: not_worse([arm], [self.best]) for name, arm in self.chosen.items() if arm is not self.best}
        return {name: p for name, p in others.items() if p is not None and p < SIGNIFICANT}


def columns(sweep: Sweep) -> list[Column]:
    """A column for each data set of each size and backbone on which a run is done, in the plan's order."""
    found: dict[Place, list[Cell]] = {}
    for cell in sweep.cells:
        outcome = sweep.outcome(cell)
        if outcome is not None and outcome.state == "done":
            found.setdefault((cell.backbone, cell.data, cell.size), []).append(cell)
    made = []
    for place, cells in found.items():
        arms = [Arm.of(sweep, [*seeds]) for _, seeds in groupby(cells, lambda cell: (cell.method, cell.rate))]
        chosen = {}
        for name in dict.fromkeys(arm.method for arm in arms):
            own = [arm for arm in arms if arm.method == name]
            most = max(len(arm.cells) for arm in own)  # a rate that diverged with one seed is not chosen by the others
            chosen[name] = max((arm for arm in own if len(arm.cells) == most), key=lambda arm: arm.chosen_by)
        made.append(Column(place, chosen, tuple(arms)))
    return made


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; None of a single one."""
    return stdev(values) if len(values) > 1 else None


def not_worse(ones: Sequence[Arm], others: Sequence[Arm]) -> float | None:
    """The share of resamples of the test rows in which ``ones`` score at least as well as ``others``.

    Each has an arm for each data set, whose rows are drawn for both alike; scores are means of data sets and of seeds.
    None where answers were not kept, or are of other rows.
    """
    gains = np.zeros(RESAMPLES)
    for n, (one, other) in enumerate(zip(ones, others, strict=True)):
        mine, theirs = resampled(one, n), resampled(other, n)
        if mine is None or theirs is None or mine[0] != theirs[0]:
            return None
        gains += mine[1] - theirs[1]
    return float((gains >= -1e-12).mean())  # sums of equal scores in another order


def grouped(found: Sequence[Column]) -> dict[tuple[str, str], list[Column]]:
    """The columns of one backbone and size, which are a table."""
    groups: dict[tuple[str, str], list[Column]] = {}
    for column in found:
        backbone, _, size = column.place
        groups.setdefault((backbone, size), []).append(column)
    return groups


def entries(group: Sequence[Column]) -> tuple[list[str], list[list[str | int | None]]]:
    """Header and rows of a table: a row a method, a column a data set, all of one size on one backbone."""
    names = list(dict.fromkeys(name for column in group for name in column.chosen))
    several = len(group) > 1
    header = ["method", *(f"{column.place[1]} ({column.best.metric})" for column in group)]
    header += ["mean", "parameters", "bytes"] if several else ["parameters", "bytes"]
    worse = [column.worse() for column in group]
    rows: list[list[str | int | None]] = []

    def average(scores: Sequence[float]) -> list[str | None]:
        """Of the row, where there are several columns; None where one of them lacks it."""
        return [f"{100 * mean(scores):.2f}" if len(scores) == len(group) else None] if several else []

    for name in names:
        own = [column.chosen.get(name) for column in group]
        shown = [
            None if arm is None else f"{arm} at {arm.rate:g}{'*' * (name in odd)}"
            for arm, odd in zip(own, worse, strict=True)
        ]
        known = [arm for arm in own if arm is not None]
        size = max(arm.bytes for arm in known)
        rows.append([name, *shown, *average([arm.score for arm in known]), known[0].parameters, size])
    floors = [column.baselines() for column in group]
    for name in dict.fromkeys(name for each in floors for name in each):
        scores = [each.get(name) for each in floors]
        shown = [None if score is None else f"{100 * score:.2f}" for score in scores]
        rows.append([name, *shown, *average([score for score in scores if score is not None]), None, None])
    return header, rows


def document(sweep: Sweep) -> dict[str, Any]:
    """The table as plain values; each score names the runs that it is the mean of."""
    found = columns(sweep)
    worse = {column.place: column.worse() for column in found}
    return {
        "schema": TABLE_SCHEMA,
        "rows": [
            {
                "backbone": column.place[0],
                "data": column.place[1],
                "size": column.place[2],
                "method": arm.method,
                "rate": arm.rate,
                "chosen": column.chosen[arm.method] is arm,
                "metric": arm.metric,
                "eval": arm.chosen_by,
                "test": arm.score,
                "deviation": deviation(arm.tests),
                "tests": list(arm.tests),
                "worse_than_best": worse[column.place].get(arm.method) if column.chosen[arm.method] is arm else None,
                "parameters": arm.parameters,
                "bytes": arm.bytes,
                "training_rows": arm.rows,
                "runs": [cell.name for cell in arm.cells],
            }
            for column in found
            for arm in column.arms
        ],
    }

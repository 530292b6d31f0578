"""Which learning rate each method should start with, by what sweeps say.

    edgepeft sweep PLAN.toml --out SWEEP     # of several data sets, learning_rates = ["1x", "3x", "10x"]
    python -m bench.rates SWEEP...           # Markdown: each method's rates, and what the rule chooses

Rule for choosing: a default has to hold everywhere and change where that helps.  Of the rates at which no data set of
any sweep (of another backbone, of more rows) is worse than at the default beyond chance, the one whose mean over all
data sets is best; the default itself where no data set is better beyond chance.  Beyond chance is what the paired
bootstrap over test rows says at 5 %, as in a sweep's table; scores are means over seeds.  A data set counts where
something can be learnt from so few rows: the linear head is better than the majority by more than the standard error of
a share of the scored rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

from edgepeft.cli._main import main
from edgepeft.data.course.baselines import SIGNIFICANT
from edgepeft.methods.base import method_of
from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.table import Arm, Column, columns, not_worse

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Rate:
    """A learning rate on the data sets that have all rates of its method: the mean score, and on how many of them it is
    better and worse than the default beyond chance."""

    rate: float
    score: float
    better: int = 0
    worse: int = 0


@app.command()
def table(
    sweeps: Annotated[list[Path], typer.Argument(help="Folders of edgepeft sweep, each of one backbone and size.")],
) -> None:
    """Print each method's rates and the rule's choice as Markdown."""
    found = [column for sweep in sweeps for column in columns(open_sweep(sweep)) if can_be_learnt(column)]
    print("| method | default: mean | other rates: mean (data sets better, worse) | data sets | chosen |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(name for column in found for name in column.chosen):
        by_set, today = rates_of(name, found), method_of(name).learning_rate
        if not by_set or today not in by_set[0]:
            print(f"| `{name}` | {today:g}: no data set has it | | 0 | - |")
            continue
        rates = compared(by_set, today)
        others = ", ".join(
            f"{each.rate:g}: {100 * each.score:.1f} (+{each.better}, -{each.worse})"
            for rate, each in rates.items()
            if rate != today
        )
        shown = f"{today:g}: {100 * rates[today].score:.1f}"
        print(f"| `{name}` | {shown} | {others} | {len(by_set)} | {choose(list(rates.values()), today):g} |")


def rates_of(method: str, found: Sequence[Column]) -> list[dict[float, Arm]]:
    """The runs of a method by rate, of each data set that has those of every sweep."""
    by_set = [{arm.rate: arm for arm in column.arms if arm.method == method} for column in found]
    ran = [rates for rates in by_set if rates]
    common = set.intersection(*map(set, ran)) if ran else set()
    return [{rate: arms[rate] for rate in sorted(common)} for arms in ran]


def compared(by_set: Sequence[Mapping[float, Arm]], today: float) -> dict[float, Rate]:
    """Each rate beside the default's."""
    found = {}
    for rate in by_set[0]:
        pairs = [(arms[rate], arms[today]) for arms in by_set]
        better, worse = (
            sum((p := not_worse([one], [other])) is not None and p < SIGNIFICANT for one, other in each)
            for each in ([(other, one) for one, other in pairs], pairs)
        )
        found[rate] = Rate(rate, mean(arm.score for arm, _ in pairs), better, worse)
    return found


def choose(rates: Sequence[Rate], today: float) -> float:
    """The rule at the top of this module."""
    harmless = [each for each in rates if not each.worse and (each.better or each.rate == today)]
    return max(harmless, key=lambda each: (each.score, -each.rate)).rate


def can_be_learnt(column: Column) -> bool:
    """Whether the linear head is better than the majority by more than chance would have it."""
    floors = column.baselines()
    share, rows = floors["majority"], column.best.cards[0].metrics["n_test"]
    return bool(floors["linear head"] > share + math.sqrt(share * (1 - share) / rows))


if __name__ == "__main__":
    main(app)

"""Which learning rate each method should start with, by what sweeps say.

    edgepeft sweep PLAN.toml --out SWEEP     # of several data sets, learning_rates = ["1x", "3x", "10x"]
    python -m bench.rates SWEEP...           # Markdown: each method's rates, and what the rule chooses

Rule for choosing: a default has to hold everywhere and change where that helps.  Of the rates that every sweep (of
another backbone, of more rows) has and at which no data set is worse than at the default beyond chance, the one that
gains most in the mean of its data sets; the default itself where no data set is better beyond chance.  Beyond chance is
what the paired bootstrap over test rows says at 5 %, as in a sweep's table; scores are means over seeds.  A data set
counts where something can be learnt from so few rows: the linear head is better than the majority by more than the
standard error of a share of the scored rows.
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
from edgepeft.data.training_loop.baselines import SIGNIFICANT
from edgepeft.methods.base import method_of
from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.table import Arm, Column, columns, not_worse

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Rate:
    """A learning rate on the data sets that have it and the default: by how much it is better in the mean, and on how
    many of them it is better and worse beyond chance."""

    rate: float
    gain: float
    sets: int
    better: int = 0
    worse: int = 0
    everywhere: bool = True


@app.command()
def table(
    sweeps: Annotated[list[Path], typer.Argument(help="Folders of edgepeft sweep, each of one backbone and size.")],
) -> None:
    """Print each method's rates and the rule's choice as Markdown."""
    found = [[column for column in columns(open_sweep(sweep)) if can_be_learnt(column)] for sweep in sweeps]
    print("| method | default | others: gain on so many data sets (better, worse beyond chance) | chosen |")
    print("|---|---|---|---|")
    for name in dict.fromkeys(name for sweep in found for column in sweep for name in column.chosen):
        today = method_of(name).learning_rate
        arms = [[{arm.rate: arm for arm in column.arms if arm.method == name} for column in sweep] for sweep in found]
        rates = compared(arms, today)
        shown = ", ".join(
            f"{each.rate:g}: {100 * each.gain:+.1f} on {each.sets} (+{each.better}, -{each.worse})"
            + ("" if each.everywhere else ", not in every sweep")
            for each in rates
        )
        print(f"| `{name}` | {today:g} | {shown} | {choose(rates, today):g} |")


def compared(sweeps: Sequence[Sequence[Mapping[float, Arm]]], today: float) -> list[Rate]:
    """Each rate but the default beside it, from the lowest on; ``sweeps`` hold the runs of their data sets by rate."""
    known = [[arms for arms in sweep if today in arms] for sweep in sweeps]
    known = [sweep for sweep in known if sweep]  # a sweep without the method says nothing of it
    found = []
    for rate in sorted({rate for sweep in known for arms in sweep for rate in arms if rate != today}):
        pairs = [(arms[rate], arms[today]) for sweep in known for arms in sweep if rate in arms]
        better = sum(_worse(default, arm) for arm, default in pairs)
        worse = sum(_worse(arm, default) for arm, default in pairs)
        everywhere = all(any(rate in arms for arms in sweep) for sweep in known)
        gain = mean(arm.score - default.score for arm, default in pairs)
        found.append(Rate(rate, gain, len(pairs), better, worse, everywhere))
    return found


def _worse(one: Arm, other: Arm) -> bool:
    share = not_worse([one], [other])
    return share is not None and share < SIGNIFICANT


def choose(rates: Sequence[Rate], today: float) -> float:
    """The rule at the top of this module."""
    helpful = [each for each in rates if each.everywhere and each.better and not each.worse]
    return max(helpful, key=lambda each: (each.gain, -each.rate)).rate if helpful else today


def can_be_learnt(column: Column) -> bool:
    """Whether the linear head is better than the majority by more than chance would have it."""
    floors = column.baselines()
    share, rows = floors["majority"], column.best.cards[0].metrics["n_test"]
    return bool(floors["linear head"] > share + math.sqrt(share * (1 - share) / rows))


if __name__ == "__main__":
    main(app)

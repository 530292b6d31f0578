"""Which learning rate each method of a sweep should start with.

    edgepeft sweep PLAN.toml --out SWEEP     # of several data sets, learning_rates = ["1x", "3x", "10x"]
    python -m bench.rates SWEEP              # Markdown: each method's rates, and what the rule chooses

Rule for choosing: of a method's rates, the one whose score is best in the mean over data sets, each data set's being
the mean over its seeds; among rates within a standard error of the best (of the differences to it, over data sets) the
lowest.  A data set counts where something can be learnt from so few rows: the linear head is better than the majority
by more than the standard error of a share of the scored rows.  The scores are those of the test rows, which are more
than the evaluation rows that pick checkpoints; what the rule gains is said of data sets that it has not seen: the rate
chosen on the others against the method's default, one data set left out after the other.  A default changes where that
gain is more than its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import typer

from edgepeft.cli._main import main
from edgepeft.methods.base import method_of
from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.table import Column, columns

Scores = Mapping[float, Mapping[str, float]]
"""By rate, then by data set."""


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def table(
    sweep: Annotated[Path, typer.Argument(help="A folder of edgepeft sweep, of one backbone and size.")],
) -> None:
    """Print each method's rates and the rule's choice as Markdown."""
    found = [column for column in columns(open_sweep(sweep)) if can_be_learnt(column)]
    print("| method | rate: score | chosen | gain on the set left out | data sets |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(name for column in found for name in column.chosen):
        by_rate, today = scores_of(name, found), method_of(name).learning_rate
        if not any(by_rate.values()):
            print(f"| `{name}` | no data set has every rate |")
            continue
        shown = ", ".join(f"{rate:g}: {100 * mean(by_rate[rate].values()):.1f}" for rate in sorted(by_rate))
        gains = [100 * gain for gain in gains_left_out(by_rate, today)] if today in by_rate else []
        error = f" ({stdev(gains) / math.sqrt(len(gains)):.1f})" if len(gains) > 1 else ""
        gain = f"{mean(gains):+.1f}{error}" if gains else "-"
        print(f"| `{name}` | {shown} | {choose(by_rate):g} | {gain} | {len(by_rate[min(by_rate)])} |")


def scores_of(method: str, found: Sequence[Column]) -> Scores:
    """The test scores of a method at its rates, of the data sets that have every one of them."""
    arms = [(column.place[1], arm) for column in found for arm in column.arms if arm.method == method]
    rates = {arm.rate for _, arm in arms}
    whole = [data for data in dict.fromkeys(d for d, _ in arms) if {a.rate for d, a in arms if d == data} == rates]
    return {rate: {data: arm.score for data, arm in arms if arm.rate == rate and data in whole} for rate in rates}


def gains_left_out(by_rate: Scores, today: float) -> list[float]:
    """Of each data set: the score at the rate that the others choose, less that at today's rate."""
    gains = []
    for data in by_rate[today]:
        others = {rate: {name: s for name, s in scores.items() if name != data} for rate, scores in by_rate.items()}
        if others[today]:
            gains.append(by_rate[choose(others)][data] - by_rate[today][data])
    return gains


def choose(by_rate: Scores) -> float:
    """The rule at the top of this module."""
    best = max(by_rate, key=lambda rate: mean(by_rate[rate].values()))
    for rate in sorted(by_rate):
        lost = [by_rate[best][data] - score for data, score in by_rate[rate].items()]
        if rate == best or (len(lost) > 1 and mean(lost) <= stdev(lost) / math.sqrt(len(lost))):
            return rate
    raise AssertionError("the best rate is one of them")


def can_be_learnt(column: Column) -> bool:
    """Whether the linear head is better than the majority by more than chance would have it."""
    floors = column.baselines()
    share, rows = floors["majority"], column.best.cards[0].metrics["n_test"]
    return bool(floors["linear head"] > share + math.sqrt(share * (1 - share) / rows))


if __name__ == "__main__":
    main(app)

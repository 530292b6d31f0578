"""Batches of real lengths, in order of arrival and sorted by length: the bare backbone beside other engines.

A peer that pads loses least where all texts are sorted by length before they are cut into batches: that form is in the
table for its sake.  All forms take turns in one race of the same workers: a set of lengths, 8 or 32 rows, an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from bench.suites._engines import ENGINES, FOR_ONE_TEXT, racers_of
from bench.suites._result import Races, SuiteRow, Target, mean_row, ratio_row
from bench.suites._suite_run import SETS, SuiteRun
from edgepeft.bench.planning.job import Batches, batches_of
from edgepeft.bench.planning.scenario import load_lengths

TITLE = "Batches of real lengths"
ARCHITECTURE = "all-MiniLM-L6-v2"
CASES = SETS

_ROWS = (8, 32)
_ARRIVAL, _SORTED = "in order of arrival", "sorted by length"
_PEERS = tuple(name for name in ENGINES if name not in FOR_ONE_TEXT)
# On real lengths in order of arrival, 32 rows; elsewhere the goal is not to lose.
_GOALS = {"optimum": Target(1.6), "openvino": Target(1.45)}


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Each form beside each engine, and the geometric mean over the sets."""
    sets = tuple(run.cases or SETS)
    forms = list(product(sets, _ROWS, (_ARRIVAL, _SORTED)))
    of_form = [_batches(run, *form) for form in forms]
    # Round k has the k-th batch of each form.
    turns = tuple(of_form[place][k % len(of_form[place])] for k in range(run.rounds) for place in range(len(forms)))
    racers, missing = racers_of(run, _PEERS, turns)
    for name, reason in missing.items():
        yield SuiteRow("batches", name, note=reason)
    raced = run.race("batches of real lengths", racers, rounds=len(turns), warmup=len(forms), together=len(forms))
    for (rows, order), name in product(product(_ROWS, (_ARRIVAL, _SORTED)), _PEERS):
        if name in missing:
            continue
        own, races = ENGINES[name].own_side, Races()
        for data in sets:
            place = forms.index((data, rows, order))
            seconds = {side: raced[side][place :: len(forms)] for side in (own, name)}
            races.append((seconds[own], seconds[name]))
            yield ratio_row(f"{own}, batches of {rows} {order}, lengths of {data}", seconds, own, name, of_totals=True)
        goal = _GOALS.get(name, Target(1.0)) if (rows, order) == (32, _ARRIVAL) else Target(1.0)
        yield mean_row(f"{own}, batches of {rows} {order}, geometric mean of {', '.join(sets)}", name, races, goal)


def _batches(run: SuiteRun, data: str, rows: int, order: str) -> Batches:
    """The whole set of texts in that order, cut; sorted batches come shuffled, so that a few stand for all."""
    lengths = load_lengths(data, seed=run.seed).clamped(run.sizes.max_length).values
    if order == _ARRIVAL:
        return batches_of(lengths, rows)
    cut = batches_of(sorted(lengths), rows)
    return tuple(cut[place] for place in np.random.default_rng(run.seed).permutation(len(cut)))

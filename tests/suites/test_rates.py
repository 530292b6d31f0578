"""The choice of learning rates: its rule on figures by hand, and the table of a sweep with planted scores."""

from __future__ import annotations

from types import SimpleNamespace as Planted

import pytest

from bench import rates
from bench.rates import can_be_learnt, choose, gains_left_out
from edgepeft.methods.base import method_named


@pytest.mark.parametrize(
    ("by_rate", "chosen"),
    [
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.9, "b": 0.9}}, 2.0),
        # Better by 0.1 in one set and 0.02 in the other: 0.06 in the mean, with a standard error of 0.04.
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.6, "b": 0.52}}, 2.0),
        # By 0.1 and -0.02: 0.04 in the mean, with a standard error of 0.06, is no better.
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.6, "b": 0.48}}, 1.0),
        ({1.0: {"a": 0.5}, 2.0: {"a": 0.6}}, 2.0),  # one set has no standard error
    ],
)
def test_the_lowest_rate_within_a_standard_error_of_the_best_is_chosen(by_rate, chosen):
    assert choose(by_rate) == chosen


def test_what_a_choice_gains_is_said_of_the_data_set_that_had_no_part_in_it():
    scores = {1.0: {"a": 0.5, "b": 0.6, "c": 0.7}, 2.0: {"a": 0.6, "b": 0.7, "c": 0.6}}
    # Of b and c the lower rate is within a standard error (0 and 0.1), of a and c too; a and b choose the higher.
    assert gains_left_out(scores, 1.0) == pytest.approx([0, 0, -0.1])
    assert gains_left_out({1.0: {"a": 0.5}, 2.0: {"a": 0.6}}, 1.0) == []


def column(data, scores, linear=0.9):
    """Of BitFit's rates, whose scores are given; the majority has 0.69 of 400 test rows."""
    card = Planted(metrics={"n_test": 400})
    arms = [Planted(method="bitfit", rate=rate, score=score, cards=(card,)) for rate, score in scores.items()]
    floors = {"majority": 0.69, "linear head": linear}
    return Planted(
        place=("b", data, "100%"), arms=arms, chosen={"bitfit": arms[0]}, best=arms[0], baselines=lambda: floors
    )


@pytest.mark.parametrize(("linear", "counts"), [(0.69, False), (0.71, False), (0.72, True)])
def test_a_data_set_counts_where_the_linear_head_has_learnt_something(linear, counts):
    assert can_be_learnt(column("a", {1e-3: 0.7}, linear)) == counts  # of 400 rows: 0.023


def test_the_table_leaves_out_data_sets_that_lack_a_rate_or_teach_nothing(monkeypatch, tmp_path, capsys):
    today = method_named("bitfit").learning_rate
    found = [
        column("a", {today: 0.5, 3 * today: 0.9}),
        column("b", {today: 0.5, 3 * today: 0.8}),
        column("one rate", {today: 0.1}),
        column("nothing", {today: 0.1, 3 * today: 0.1}, linear=0.69),
    ]
    monkeypatch.setattr(rates, "open_sweep", lambda folder: folder)
    monkeypatch.setattr(rates, "columns", lambda folder: found)
    rates.table(tmp_path)
    # Left out, each set's rate is what the other chooses: +40 and +30 points.
    shown = f"| `bitfit` | {today:g}: 50.0, {3 * today:g}: 85.0 | {3 * today:g} | +35.0 (5.0) | 2 |"
    assert capsys.readouterr().out.splitlines()[2:] == [shown]

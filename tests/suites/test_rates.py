"""The choice of learning rates: its rule on figures by hand, and the table of sweeps with planted scores."""

from __future__ import annotations

from types import SimpleNamespace as Planted

import pytest

from bench import rates
from bench.rates import Rate, can_be_learnt, choose
from edgepeft.methods.base import method_named

TODAY = method_named("bitfit").learning_rate


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ([Rate(3.0, 0.1, 5, better=1)], 3.0),
        ([Rate(3.0, 0.3, 5, better=4, worse=1)], 1.0),  # what helps most sets does not hold on one
        ([Rate(3.0, 0.3, 5)], 1.0),  # better in the mean, and on no set beyond chance
        ([Rate(3.0, 0.1, 5, better=2), Rate(10.0, 0.2, 5, better=1)], 10.0),
        ([Rate(3.0, 0.1, 5, better=1), Rate(10.0, 0.1, 5, better=1)], 3.0),  # of equal ones the lowest
        ([Rate(3.0, 0.1, 5, better=1), Rate(10.0, 0.2, 4, better=2, everywhere=False)], 3.0),
        ([], 1.0),
    ],
)
def test_a_default_changes_to_the_rate_that_gains_most_where_no_data_set_loses(rates, chosen):
    assert choose(rates, 1.0) == chosen


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


def shown(monkeypatch, capsys, **sweeps):
    """The rows of the table; a tenth of a score is beyond chance."""
    monkeypatch.setattr(rates, "open_sweep", lambda folder: folder)
    monkeypatch.setattr(rates, "columns", sweeps.get)
    monkeypatch.setattr(rates, "not_worse", lambda ones, others: float(ones[0].score > others[0].score - 0.1))
    rates.table(list(sweeps))
    return capsys.readouterr().out.splitlines()[2:]


def test_the_table_counts_the_sets_of_all_sweeps_and_asks_each_for_a_rate(monkeypatch, capsys):
    few = [
        column("a", {TODAY: 0.5, 3 * TODAY: 0.9, 10 * TODAY: 1.0}),
        column("b", {TODAY: 0.5, 3 * TODAY: 0.45}),
        column("nothing", {TODAY: 0.9, 3 * TODAY: 0.1}, linear=0.69),
    ]
    three, ten = f"{3 * TODAY:g}: +17.5 on 2 (+1, -0)", f"{10 * TODAY:g}: +50.0 on 1 (+1, -0)"
    row = f"| `bitfit` | {TODAY:g} | {three}, {ten} | {10 * TODAY:g} |"
    assert shown(monkeypatch, capsys, few=few) == [row]
    larger = [column("a", {TODAY: 0.9, 3 * TODAY: 0.85})]
    three = f"{3 * TODAY:g}: +10.0 on 3 (+1, -0)"
    row = f"| `bitfit` | {TODAY:g} | {three}, {ten}, not in every sweep | {3 * TODAY:g} |"
    assert shown(monkeypatch, capsys, few=few, larger=larger) == [row]
    larger = [column("a", {TODAY: 0.9, 3 * TODAY: 0.75})]
    three = f"{3 * TODAY:g}: +6.7 on 3 (+1, -1)"
    row = f"| `bitfit` | {TODAY:g} | {three}, {ten}, not in every sweep | {TODAY:g} |"
    assert shown(monkeypatch, capsys, few=few, larger=larger) == [row]


def test_a_method_without_runs_at_its_default_is_left_as_it_is(monkeypatch, capsys):
    sets = [column("a", {3 * TODAY: 0.5}), column("b", {10 * TODAY: 0.5})]
    assert shown(monkeypatch, capsys, few=sets) == [f"| `bitfit` | {TODAY:g} |  | {TODAY:g} |"]

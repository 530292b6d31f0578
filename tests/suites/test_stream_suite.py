"""The suite stream: the rate that is found is the one that arithmetic gives, and an engine that is always late says so."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bench.suites import stream
from bench.suites._suite_run import SuiteRun

EVENLY = [float(number) for number in range(1, 4001)]
GRID = 1.05  # rates are tried 4 % apart


@pytest.mark.parametrize("alone_s", [0.002, 0.02, 0.07])
def test_texts_one_by_one_may_arrive_as_often_as_they_are_answered(alone_s):
    gap = stream.least_gap(lambda first, rows: alone_s, EVENLY, most=1)
    # The queue grows by alone_s - gap a text, and may take 0.1 s for all but the last twentieth of 1.5 s.
    least = 0.95 * 1.5 * alone_s / (0.95 * 1.5 + 0.1 - alone_s)
    assert least * 0.97 <= gap <= least * GRID


def test_what_waits_is_one_batch_that_takes_no_more_rows_than_it_may():
    seen = []

    def step(first, rows):
        seen.append(rows)
        return 0.04

    gap = stream.least_gap(step, EVENLY, most=16)
    assert 0.04 / 16 * 0.9 < gap < 0.04 / 16 * GRID  # 16 each 40 ms, and the queue's end as above
    assert max(seen) == 16 and np.median(seen) > 1


def test_random_arrivals_leave_less_than_even_ones():
    arrivals = np.random.default_rng(0).exponential(size=4000).cumsum().tolist()
    even, drawn = (stream.least_gap(lambda first, rows: 0.02, each, most=1) for each in (EVENLY, arrivals))
    assert drawn > 1.1 * even


def test_an_engine_that_is_later_than_the_deadline_without_a_queue_has_no_rate():
    assert stream.least_gap(lambda first, rows: 0.11, EVENLY, most=16) == math.inf
    assert stream.least_gap(lambda first, rows: 0.11, EVENLY, most=1, deadline_s=0.5) < 0.11 * 1.1
    for every, may in ((25, True), (15, False)):  # one of 25 is late, or one of 15: 5 of 100 may be
        found = stream.least_gap(lambda first, rows: 0.001 if first % every else 0.11, EVENLY, most=1)  # noqa: B023
        assert (found < math.inf) == may


def test_a_model_that_keeps_up_with_all_is_not_asked_for_ever():
    assert stream.least_gap(lambda first, rows: 1e-6 * rows, EVENLY, most=16) <= 1.5 / 4000


def test_who_is_always_late_is_named_and_a_tiny_model_is_measured_under_the_limits(tiny_run, monkeypatch):
    run = tiny_run("bert", vocab_size=300)
    run.cases = ("sst2",)
    monkeypatch.setattr(stream, "_SPAN", 1)
    monkeypatch.setattr(stream, "_PEERS", ("optimum", "openvino"))
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name, task: "not here" if name == "openvino" else run.work)
    monkeypatch.setattr(SuiteRun, "note_versions", lambda *_: None)
    racers_of = stream.racers_of

    def with_a_slow_one(*asked):
        racers, missing = racers_of(*asked)
        return {**racers, "optimum": racers["edgepeft"]}, missing

    monkeypatch.setattr(stream, "racers_of", with_a_slow_one)
    found = stream.least_gap
    monkeypatch.setattr(stream, "least_gap", lambda *asked: math.inf if next(turns) else found(*asked))
    turns = itertools.repeat(False)
    rows = list(stream.measure(run))
    assert [(row.peer, row.note) for row in rows if row.value is None] == [("openvino", "not here")]
    (row,) = (row for row in rows if row.value)
    assert row.note == "lengths of sst2" and run.in_force is not None
    assert [len(row.samples[side]) for side in ("edgepeft", "optimum")] == [2, 2]
    turns = itertools.repeat(True)
    late = [row.note for row in stream.measure(run) if row.peer == "optimum"]
    assert late == ["too late at any rate: edgepeft, optimum"]

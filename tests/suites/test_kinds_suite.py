"""The suite kinds: both sides of a race give the same values, and what does not is not timed."""

from __future__ import annotations

import numpy as np
import pytest
from optimum_classes import optimum_class
from tolerance import exactly

from bench.peers import optimum_kinds
from bench.suites import kinds
from bench.suites._suite_run import SuiteRun
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import EdgepeftError
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.base import kinds as known_kinds

ROWS = {"batches": ((9, 4, 6, 2),)}


@pytest.fixture(scope="module")
def run(tiny_run):
    return tiny_run("roberta", vocab_size=300)


def transformers_values(run, kind, inputs):
    """What transformers' own class computes in float64, without optimum."""
    import torch

    model = optimum_kinds.transformers_model(kinds._bundle(run), kind).double()
    given = {name: torch.from_numpy(rows) for name, rows in inputs.items() if name != "token_type_ids"}
    theirs = optimum_kinds.KINDS[kind]
    given = {name: torch.from_numpy(rows) for name, rows in theirs.given(inputs).items() if name in given}
    with torch.no_grad():
        found = exactly(lambda: dict(enumerate(model(**given).to_tuple()[: 2 if kind == "spans" else 1])))
    return theirs.values([each.value for each in found.values()]), max(each.error for each in found.values())


@pytest.mark.parametrize("kind", kinds.CASES)
def test_ours_is_what_transformers_class_for_that_kind_computes(run, kind):
    inputs = run.job("", kinds._bundle(run), **ROWS).batch(0)
    with Runtime(kinds._bundle(run), threads=1, cache=False) as runtime:
        own = runtime.logits(kind, inputs)
    expected, error = transformers_values(run, kind, inputs)
    read = inputs["attention_mask"] != 0 if own.ndim > 2 else ...
    np.testing.assert_allclose(own[read], expected[read], rtol=0, atol=10 * np.max(error))
    assert np.ptp(expected[read]) > 100 * np.max(error)


def test_every_kind_that_an_encoder_answers_is_raced_but_the_number_which_is_a_classification_of_one(run):
    assert {*known_kinds()} - {*kinds.CASES} == {"regression", "text"}
    assert {*Bundle(kinds._bundle(run)).manifest.tasks} == {*kinds.CASES}


def test_a_mean_is_of_all_sets_of_lengths_and_of_all_kinds(run, monkeypatch):
    times = iter(range(2, 100))  # of the peer; ours takes a second
    monkeypatch.setattr(run, "cases", ("spans", "choice", "tokens"))
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name, of, task: "not here" if task == "tokens" else of)
    monkeypatch.setattr(SuiteRun, "note_versions", lambda *_: None)

    def race(_, what, racers, rounds, warmup, together):
        assert rounds == len(racers["edgepeft"].batches) == 2 * 3 and warmup == together == 3
        of_set = [float(next(times)) for _ in range(3)]
        return {"edgepeft": [1.0] * rounds, "optimum": of_set * 2}

    monkeypatch.setattr(SuiteRun, "race", race)
    monkeypatch.setattr(kinds, "_apart", lambda *_: 0.0)
    rows = list(kinds.measure(run))
    expected = [
        2,
        3,
        4,
        (2 * 3 * 4) ** (1 / 3),
        5,
        6,
        7,
        (5 * 6 * 7) ** (1 / 3),
        None,
        (2 * 3 * 4 * 5 * 6 * 7) ** (1 / 6),
    ]
    assert [row.value for row in rows] == [value and pytest.approx(value) for value in expected]
    assert rows[-2].note == "not here" and rows[-1].what == "geometric mean of 2 kinds"
    assert [row.target.value for row in rows if row.target] == [1.6]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spans", "choice"])  # whose inputs or outputs are not one table
def test_the_export_is_raced_and_its_values_are_compared_first(run, kind, monkeypatch):
    optimum_class("ORTModel")
    monkeypatch.setattr(run, "cases", (kind,))
    rows = list(kinds.measure(run))
    assert [row.note.startswith("values of the two are") for row in rows] == [True] * 3 + [False] * 2
    assert all(row.value > 0 and row.peer == "optimum" for row in rows)
    assert all(len(row.samples["edgepeft"]) == len(row.samples["optimum"]) >= 1 for row in rows[:3])


def test_sides_that_differ_are_not_timed(run, tmp_path):
    class Constant:
        """A model whose every value is 0."""

        def get_inputs(self):
            return []

        def run(self, _, inputs):
            return [np.zeros((32, 2), np.float32)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "plain_session", lambda *_: Constant())
        with pytest.raises(EdgepeftError, match=r"classification and its export by optimum are .* apart"):
            kinds._apart(run, "classification", tmp_path)

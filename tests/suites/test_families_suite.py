"""The suite families: two sides that give the same hidden states, what stands in for optimum, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from bench.suites import families
from bench.suites._suite_run import SuiteRun
from edgepeft.common.errors import EdgepeftError


@pytest.fixture(scope="module")
def run(tiny_run):
    return tiny_run("deberta-v2", vocab_size=300, max_position_embeddings=4096)


def test_the_mean_is_of_the_real_lengths_alone_and_a_long_text_has_a_goal_of_its_own(run, monkeypatch):
    times = iter((2.0, 3.0, 4.0, 5.0))  # of the peer; ours takes a second
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name: "not here" if name == "optimum" else run.work)
    monkeypatch.setattr(SuiteRun, "race", lambda *_, **__: {"edgepeft": [1.0] * 3, "torch_onnx": [next(times)] * 3})
    monkeypatch.setattr(families, "_apart", lambda *_: 2e-6)
    *by_set, mean, long = families.measure(run)
    assert [row.value for row in (*by_set, mean, long)] == [2, 3, 4, pytest.approx(24 ** (1 / 3)), 5]
    assert {row.peer for row in (*by_set, mean, long)} == {"torch_onnx"}
    assert {row.note for row in (*by_set, long)} == {"not here; hidden states of the two are 2.0e-06 apart at most"}
    assert (mean.target.value, long.target.value) == (2.0, 1.3)


def test_where_no_export_is_to_be_had_the_reasons_are_the_result(run, monkeypatch):
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name: f"no {name}")
    (row,) = families.measure(run)
    assert (row.value, row.note) == (None, "no optimum; no torch_onnx")


def test_sides_that_differ_are_not_timed(run, monkeypatch):
    class Constant:
        def get_inputs(self):
            return []

        def run(self, names, inputs):
            return [np.zeros((1, 1, 32), np.float32)]

    monkeypatch.setattr(families, "plain_session", lambda *_: Constant())
    with pytest.raises(EdgepeftError, match=r"tiny and its export by optimum are .* apart"):
        families._apart(run, families._Export("optimum", run.work, ""), ((9, 4, 6),))


@pytest.mark.slow
@pytest.mark.parametrize("peer", families._PEERS)
def test_each_export_gives_our_hidden_states(run, peer):
    model = run.peer(peer)
    if isinstance(model, str) and "not installed" in model:
        pytest.skip(model)
    assert families._apart(run, families._Export(peer, model, ""), ((9, 4, 6), (3, 12))) < 1e-4

"""The suites single and batches: peers of the same model, both widths of weights, and what is not there said once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny import ragged

from bench.peers import PEERS, optimum
from bench.suites import batches, single
from bench.suites._random_bundle import config_in, write_bundle
from bench.suites._suite_run import SuiteRun
from edgepeft.bench.planning.scenario import load_lengths
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import plain_session


@pytest.fixture(scope="module")
def run(tiny_run):
    return tiny_run("bert", vocab_size=300)


def hidden(model, inputs):
    session = plain_session(model, 1)
    given = {value.name: inputs[value.name] for value in session.get_inputs()}
    return session.run(["last_hidden_state"], given)[0]


def test_the_fused_peer_is_the_same_model_and_the_quantised_ones_are_near_it(run, tmp_path):
    pytest.importorskip("optimum.onnxruntime")
    inputs = run.job("", run.bundle("bare"), batches=((7,),)).batch(0)
    with Runtime(run.bundle("bare"), threads=1, cache=False) as runtime:
        expected = runtime.last_hidden_state(inputs)
    optimum.export_fused(run.plain(), tmp_path / "exact")
    fused = hidden(tmp_path / "exact" / PEERS["optimum_o3"].result, inputs)
    np.testing.assert_allclose(fused, expected, atol=5e-3)  # GELU by tanh is off by up to 5e-4 an activation
    sizes = set()
    for form in ("fused", "channel", "plain"):
        optimum.export_int8(run.plain(), tmp_path / form, form)
        model = tmp_path / form / PEERS["dynamic_int8"].result
        off = np.abs(hidden(model, inputs) - fused).max()
        assert 0 < off < 0.06 * np.abs(fused).max()  # where channels stand out these are 9 times the others
        sizes.add(model.stat().st_size)
    assert len(sizes) == 3  # a scale a matrix, a scale a column; more nodes


def test_each_length_is_compared_in_both_widths_and_a_missing_peer_is_said_once(run, monkeypatch):
    monkeypatch.setattr(single, "_notes", lambda *_: {"dynamic int8": "off by 0.1"})
    raced = without_peers(monkeypatch, run, missing={"openvino", "openvino_int8", "encoder_ctranslate2"})
    rows = list(single.measure(run))
    said, measured = [row for row in rows if row.value is None], [row for row in rows if row.value]
    assert [(row.peer, row.note) for row in said] == [
        (name, "not here") for name in ("openvino", "ctranslate2", "openvino int8", "ctranslate2 int8")
    ]
    assert raced == [("one text", ((8,), (16,), (32,), (64,), (128,)), 2 * 4 * (8 + 4 + 2 + 1 + 1))]
    assert [len(row.samples["edgepeft"]) for row in measured if row.peer == "optimum"] == [
        64,
        64,
        32,
        32,
        16,
        16,
        8,
        8,
        8,
        8,
    ]
    assert len(measured) == 2 * 5 * 5
    cold, warm = (
        {(row.what.partition(",")[0], row.value) for row in measured if row.what.endswith(" after another") == on}
        for on in (False, True)
    )
    assert cold == {("edgepeft", 3.0), ("edgepeft int8", 2.0)} and warm == {("edgepeft", 4.5), ("edgepeft int8", 3.0)}
    assert [row.peer for row in measured if row.note] == ["dynamic int8"]
    assert {row.target.value for row in measured} == {1.0}  # goals are of MiniLM's shape


def test_a_run_that_is_cut_short_says_which_lengths_it_has_not(run, monkeypatch):
    monkeypatch.setattr(single, "_notes", lambda *_: {})
    without_peers(monkeypatch, run, most=11)
    rows = {row.what: row for row in single.measure(run) if row.peer == "optimum"}
    assert [len(row.samples.get("optimum", ())) for row in rows.values()] == [8, 8, 3, 3, 0, 0, 0, 0, 0, 0]
    cut = rows["edgepeft, a text of 32 tokens"]
    assert cut.value is None and cut.note == "no time was left" and rows["edgepeft, a text of 16 tokens"].value == 3.0


def test_goals_by_length_are_those_of_the_named_shape(run, monkeypatch):
    monkeypatch.setattr(single, "_notes", lambda *_: {})
    monkeypatch.setattr(run, "architecture", single.ARCHITECTURE)
    without_peers(monkeypatch, run)
    rows = [row for row in single.measure(run) if row.what.endswith(" 128 tokens")]
    goals = {row.peer: row.target.value for row in rows}
    assert goals["optimum"] == 1.06 and goals["dynamic int8"] == 1.2 and goals["openvino"] == 1.0


def test_forms_of_batches_take_turns_and_a_sorted_batch_has_next_to_no_padding(run, monkeypatch):
    raced = without_peers(monkeypatch, run, missing={"openvino_int8"})
    rows = list(batches.measure(run))
    ((_, turns, rounds),) = raced
    assert rounds == len(turns) == 2 * 3 * 2 * 2  # rounds, sets, rows, orders
    assert [len(batch) for batch in turns[:4]] == [8, 8, 32, 32]
    lengths = load_lengths("sst2", seed=0).clamped(run.sizes.max_length).values
    assert turns[0] == tuple(lengths[:8]) and turns[2] == tuple(lengths[:32])
    ordered = np.sort(lengths)[: len(lengths) // 8 * 8].reshape(-1, 8)
    assert list(turns[1]) in ordered.tolist() and list(turns[13]) in ordered.tolist() and turns[1] != turns[13]
    means = {(row.what, row.peer): row for row in rows if "mean" in row.what}
    what = "edgepeft int8, batches of 32 sorted by length, geometric mean of sst2, mrpc, rte"
    assert means[what, "dynamic int8"].value == pytest.approx(2.0)
    arrival = "edgepeft, batches of 32 in order of arrival, geometric mean of sst2, mrpc, rte"
    assert means[arrival, "optimum"].target.value == 1.6 and means[arrival, "optimum O3"].target.value == 1.0
    assert [(row.peer, row.note) for row in rows if row.value is None] == [("openvino int8", "not here")]


def without_peers(monkeypatch, run, missing=frozenset(), most=None):
    """Nothing is made or run: ours takes 2 s, in 8 bits 3, everybody else 6.  Each race's name, batches and rounds."""
    monkeypatch.setattr(SuiteRun, "bundle", lambda _, name, weights="fp32": run.work / name)
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name, task: "not here" if name in missing else run.work)
    monkeypatch.setattr(SuiteRun, "plain", lambda _: run.work)
    monkeypatch.setattr(SuiteRun, "note_versions", lambda *_: None)
    raced = []

    def race(self, what, racers, rounds, warmup, together, twice=False):
        assert rounds % together == warmup % together == 0
        raced.append((what, racers["edgepeft"].job.batches, rounds))
        seconds = {"edgepeft": 2.0, "edgepeft int8": 3.0}
        self.again = {name: [seconds.get(name, 9.0)] * (most or rounds) for name in racers} if twice else {}
        return {name: [seconds.get(name, 6.0)] * (most or rounds) for name in racers}

    monkeypatch.setattr(SuiteRun, "race", race)
    return raced


def test_a_folder_with_a_checkpoint_is_measured_with_its_own_weights(tiny, tmp_path):
    folder = tiny("bert")
    config = config_in(str(folder))
    assert config == json.loads((folder / "config.json").read_bytes())
    made = write_bundle(tmp_path / "bundle", str(folder))
    assert (made / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    with (
        Runtime(made, threads=1, cache=False) as own,
        Runtime(write_bundle(tmp_path / "8", str(folder), weights="int8")) as eight,
    ):
        inputs = ragged(3, 9, config)
        exact, near = own.last_hidden_state(inputs), eight.last_hidden_state(inputs)
    real = inputs["attention_mask"] == 1
    assert 0 < np.abs(exact - near)[real].max() < 0.5

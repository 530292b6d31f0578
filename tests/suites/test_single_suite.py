"""The suite single: peers of the same model, both widths of weights, and what is not there said once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny import ragged

from bench.peers import dynamic_int8, optimum_o3
from bench.suites import single
from bench.suites._random_bundle import config_in, write_bundle
from bench.suites._suite_run import SuiteRun
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
    optimum_o3.export(run.plain(), tmp_path / "fused")
    fused = hidden(tmp_path / "fused" / optimum_o3.RESULT, inputs)
    np.testing.assert_allclose(fused, expected, atol=5e-3)  # GELU by tanh is off by up to 5e-4 an activation
    sizes = set()
    for per in ("tensor", "channel"):
        dynamic_int8.export(run.plain(), tmp_path / per, per)
        model = tmp_path / per / dynamic_int8.RESULT
        off = np.abs(hidden(model, inputs) - fused).max()
        assert 0 < off < 0.2
        sizes.add(model.stat().st_size)
    assert len(sizes) == 2  # a scale a matrix, and a scale a column


def test_each_length_is_compared_in_both_widths_and_a_missing_peer_is_said_once(run, monkeypatch):
    bundles = {"bare": "fp32", "int8": "int8"}
    monkeypatch.setattr(SuiteRun, "bundle", lambda _, name, weights="fp32": bundles[name] == weights and name)
    monkeypatch.setattr(SuiteRun, "peer", lambda _, name, task: "not here" if name == "openvino" else run.work)
    monkeypatch.setattr(single, "_notes", lambda *_: {"dynamic int8": "off by 0.1"})
    raced = []

    def race(_, what, racers, rounds, warmup):
        raced.append((what, racers["edgepeft"].job.batches, rounds))
        seconds = {"edgepeft": 2.0, "edgepeft int8": 3.0}
        return {name: [seconds.get(name, 6.0)] * 3 for name in racers}

    monkeypatch.setattr(SuiteRun, "race", race)
    missing, *rows = single.measure(run)
    assert (missing.peer, missing.value, missing.note) == ("openvino", None, "not here")
    assert raced[0] == ("a text of 8 tokens", ((8,),), 2 * 32) and raced[-1] == (
        "a text of 128 tokens",
        ((128,),),
        2 * 2,
    )
    assert len(rows) == 5 * 4 and not {"openvino"} & {row.peer for row in rows}
    assert {(row.what.partition(",")[0], row.value) for row in rows} == {("edgepeft", 3.0), ("edgepeft int8", 2.0)}
    assert [row.peer for row in rows if row.note] == ["dynamic int8"]
    goals = {row.peer: row.target.value for row in rows if row.what.endswith(" 128 tokens")}
    assert goals == {"optimum": 1.06, "optimum O3": 1.2, "dynamic int8": 1.2, "dynamic int8 by channel": 1.2}


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

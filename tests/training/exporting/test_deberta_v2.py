"""A bundle of DeBERTa, in float32 and in 8 bits: what its tasks answer alone and together, and tuning one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from deltas import TEXTS, bundled, random_delta
from tolerance import exact_logits
from tuned import tune_task

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.deploy.verify import audit
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.tuning.target import Files

# Task -> method and settings: two of a structure at queries and keys, which distances pass too, two of one elsewhere.
TASKS = {
    "near": ("lora", {"roles": ("query", "key")}),
    "far": ("lora", {"roles": ("query", "key")}),
    "one": ("pfeiffer", {}),
    "two": ("pfeiffer", {}),
    "prompted": ("prompt-t", {"length": 5}),
    "whole": ("full", {}),
}


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(str(tiny("deberta-v2", vocab_size=1152)))


@pytest.fixture(scope="module")
def deltas(backbone):
    return {
        name: random_delta(backbone, method, name, None, seed=seed, settings=settings)
        for seed, (name, (method, settings)) in enumerate(TASKS.items())
    }


@pytest.fixture(scope="module", params=["fp32", "int8"])
def exported(request, backbone, deltas, tmp_path_factory):
    return request.param, bundled(deltas, backbone, tmp_path_factory.mktemp(request.param), request.param)


def test_every_task_answers_as_pytorch_does_alone_and_beside_another(exported, backbone, deltas):
    dtype, bundle = exported
    model, runtime = load_model(backbone, "eager"), Runtime(bundle, threads=1)
    inputs = backbone.encoder().encode(TEXTS[:20], 40).inputs
    for name, delta in deltas.items():
        found, exact = runtime.logits(name, inputs), exact_logits(delta, model, inputs)
        if dtype == "fp32" or name == "whole":  # its own matrices are multiplied in float32
            exact.require(found, name)
        else:
            noise, signal = np.abs(found - exact.value).max(), np.ptp(exact.value)
            assert noise < 0.05 * signal, (name, noise, signal)
    for pair in (("near", "far"), ("one", "two")):
        tasks = [pair[i % 2] for i in range(6)]
        together = runtime.predict_mixed(tasks, TEXTS[:6])
        alone = [runtime.predict(task, [text])[0] for task, text in zip(tasks, TEXTS[:6], strict=True)]
        values = [[answer.value for answer in answers] for answers in (together, alone)]
        np.testing.assert_allclose(*values, rtol=0, atol=1e-4 if dtype == "fp32" else 0.1)


def test_a_task_at_queries_and_keys_is_tuned_and_stays_sound(exported, tmp_path):
    _, bundle = exported
    source = np.random.default_rng(0)
    lines = [
        {
            "sentence1": " ".join([f"w{5 + i % 2}", *(f"w{w}" for w in source.integers(10, 50, 3 + i % 9))]),
            "label": float(i % 2),
        }
        for i in range(40)
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tuned = tune_task(bundle, "near", Files(rows), TuneSettings(steps=6, learning_rate=1e-2), threads=1)
    assert tuned.metrics and not any(finding.problem for finding in audit(bundle))

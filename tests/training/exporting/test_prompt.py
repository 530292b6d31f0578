"""A task with a prompt, from the bundle to the plain model: nobody but the graph knows of its placeholders."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from deltas import TEXTS, random_delta, saved
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.deploy.install import prepare_exported
from edgepeft.deploy.merge import merge_task
from edgepeft.runtime import runtime as runtime_module
from edgepeft.runtime.inputs import passes
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle


@pytest.fixture(scope="module")
def prompted(tiny, tmp_path_factory):
    """(bundle, PyTorch's logits of the texts, their inputs)."""
    folder = tmp_path_factory.mktemp("prompted")
    backbone = open_backbone(str(tiny("roberta")))
    delta = random_delta(backbone, "prompt-r", "mood", settings={"length": 6})
    export_bundle(backbone, [saved(delta, folder / "delta")], folder / "bundle", texts=TEXTS)
    inputs = backbone.encoder().encode(TEXTS[:20], 40).inputs
    return folder / "bundle", exact_logits(delta, load_model(backbone, "eager"), inputs), inputs


def test_the_runtime_answers_as_pytorch_in_one_pass_and_in_many(prompted, monkeypatch):
    folder, expected, inputs = prompted
    runtime = Runtime(folder)
    expected.require(runtime.logits("mood", inputs))
    monkeypatch.setattr(runtime_module, "passes", lambda part, prompt: passes(part, 40, prompt))
    expected.require(runtime.logits("mood", inputs))
    assert np.ptp(expected.value, axis=0).min() > 0.1


def test_the_manifest_says_how_long_the_prompt_is(prompted):
    entry = Bundle(prompted[0]).entry("mood")
    assert (entry.prompt_length, entry.head_reads, entry.private_bytes) == (6, "first_token", 0)


def test_a_prompts_tokens_count_towards_a_pass():
    inputs = {"attention_mask": np.ones((8, 10), np.int64)}
    assert [len(rows) for rows, _ in passes(inputs, 40, prompt=10)] == [2, 2, 2, 2]
    assert [len(rows) for rows, _ in passes(inputs, 40)] == [4, 4]


def test_the_merged_model_takes_plain_rows(prompted, tmp_path):
    folder, expected, inputs = prompted
    merge_task(Bundle(folder), "mood", tmp_path / "plain")
    session = ort.InferenceSession(tmp_path / "plain" / "model.onnx")
    feed = {value.name: inputs[value.name] for value in session.get_inputs()}
    expected.require(session.run(["logits"], feed)[0])


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("edgepeft.prompt_length", "lots", "length 'lots'"),
        ("edgepeft.prompt_length", "99999", "ONNX Runtime stops in the model"),
        ("edgepeft.placeholder_id", "60", "ONNX Runtime stops in the model.*out of data bounds"),
    ],
)
def test_a_file_whose_placeholders_fit_no_table_is_refused(prompted, tmp_path, key, value, named):
    folder = prompted[0]
    model = onnx.load(folder / "tasks" / "mood.onnx")
    next(entry for entry in model.metadata_props if entry.key == key).value = value
    onnx.save(model, tmp_path / "mood.onnx")
    shutil.copy(folder / "tasks" / "mood.check.safetensors", tmp_path)
    with pytest.raises(BundleError, match=named):
        prepare_exported(Bundle(folder), tmp_path / "mood.onnx")

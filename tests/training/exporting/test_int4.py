"""Bundles of 4-bit weights: what they answer, to PyTorch's with the same rounded weights; what tunes on them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from safetensors.numpy import load_file
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle import manifest
from edgepeft.bundle.bundle import Bundle
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import open_session, run_session
from edgepeft.training.exporting.bundle import export_bundle

# A method for each way to join a backbone: sites, inputs, prompts, biases, norms, matrices, generated ones.
KINDS = {
    "lora": {},
    "houlsby": {"bottleneck": 4},
    "prompt-r": {"length": 5},
    "dora": {},
    "bitfit": {},
    "top-k": {"layers": 1},
    "full": {},
    "intrinsic-said": {"dimension": 90},
}
WORDS = "embeddings.word_embeddings.weight"


def four_bits(weights: np.ndarray) -> np.ndarray:
    """What 4 bits stand for, a group of 32 at a time: the value of largest magnitude is -8 steps, the highest is 7."""
    given = np.empty_like(weights)
    for row, out in zip(weights, given, strict=True):
        for begin in range(0, len(row), 32):
            group = row[begin : begin + 32]
            step = max(group, key=abs) / np.float32(-8)
            out[begin : begin + 32] = np.clip(np.rint(group / step), -8, 7) * step if step else 0
    return given


def eight_bits(weights: np.ndarray) -> np.ndarray:
    scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
    return np.rint(weights / scale) * scale


def rounded(backbone):
    """PyTorch's model with NumPy's rounding of the weights in place of the weights."""
    model = load_model(backbone, "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and name.startswith("encoder."):
                parts = four_bits if parameter.shape[1] % 32 == 0 else eight_bits
                parameter.copy_(torch.from_numpy(parts(parameter.numpy())))
            elif name == WORDS:
                parameter.copy_(torch.from_numpy(eight_bits(parameter.numpy())))
    return model


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(str(tiny("bert", vocab_size=1152, mean=True, intermediate_size=64)))


@pytest.fixture(scope="module")
def deltas(backbone):
    return {name: random_delta(backbone, name, name, None, settings=settings) for name, settings in KINDS.items()}


@pytest.fixture(scope="module")
def four(backbone, deltas, tmp_path_factory):
    """A bundle of 4-bit weights with a task of each kind; not to be written to."""
    folder = tmp_path_factory.mktemp("four")
    paths = [saved(delta, folder / f"delta-{name}") for name, delta in deltas.items()]
    with pytest.MonkeyPatch.context() as patch:  # random weights are no weights that 4 bits keep the decisions of
        patch.setitem(manifest._QUANTISED, "int4", manifest.Tolerance(None, 1.0))
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS, weights="int4")
    return folder / "bundle"


def rows(backbone, texts=TEXTS[:40]):
    return backbone.encoder().encode(texts, 40).inputs


def logits(bundle, task, inputs, monkeypatch, form):
    """By the stored graph, or by MatMulNBits with activations in float32 or in 8 bits."""
    if form == "as stored":
        monkeypatch.setattr("edgepeft.runtime.session.lower_four_bits", lambda model, accuracy_level: None)
    monkeypatch.setattr("edgepeft.runtime.session.lacks_dot_product", lambda: form == "float32")
    return run_session(open_session(Bundle(bundle).graph(task), bundle, 1), "logits", inputs)


@pytest.mark.parametrize("form", ["as stored", "float32"])
@pytest.mark.parametrize("method", KINDS)
def test_a_delta_of_any_kind_answers_as_pytorch_does_with_the_rounded_weights(
    four, backbone, deltas, monkeypatch, method, form
):
    inputs = rows(backbone)
    found = logits(four, method, inputs, monkeypatch, form)
    exact_logits(deltas[method], rounded(backbone), inputs).require(found)

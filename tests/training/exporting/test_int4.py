"""Bundles of 4-bit weights: what they answer, to PyTorch's with the same rounded weights; what they refuse and weigh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from four_bits import four_bits
from tolerance import exact_logits
from verbs import edgepeft, shown

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle import bundle as bundle_module
from edgepeft.bundle.bundle import Bundle
from edgepeft.graph.cost import packed_bytes
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import open_session, run_session
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle

SIZES = {"vocab_size": 1152, "mean": True}
# A delta at sites, one that has matrices of its own, one that makes them of the backbone's.
KINDS = {"lora": {}, "top-k": {"layers": 1}, "intrinsic-said": {"dimension": 90}}
WORDS = "embeddings.word_embeddings.weight"


def eight_bits(weights: np.ndarray) -> np.ndarray:
    scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
    return np.rint(weights / scale) * scale


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(str(tiny("bert", intermediate_size=64, **SIZES)))


@pytest.fixture(scope="module")
def rounded(backbone):
    """PyTorch's model with NumPy's rounding of the weights in place of the weights."""
    model = load_model(backbone, "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == WORDS or (parameter.dim() == 2 and name.startswith("encoder.")):
                rounding = eight_bits if name == WORDS else four_bits
                parameter.copy_(torch.from_numpy(rounding(parameter.numpy())))
    return model


@pytest.fixture(scope="module")
def deltas(backbone):
    return {name: random_delta(backbone, name, name, settings=settings) for name, settings in KINDS.items()}


@pytest.fixture(scope="module")
def four(backbone, deltas, tmp_path_factory):
    """A bundle of 4-bit weights with a task of each kind; not to be written to."""
    folder = tmp_path_factory.mktemp("four")
    paths = [saved(delta, folder / f"delta-{name}") for name, delta in deltas.items()]
    with pytest.MonkeyPatch.context() as patch:  # 4 bits keep the decisions of learnt weights, not those of random ones
        patch.setitem(bundle_module._QUANTISED, "int4", bundle_module.Tolerance(None, 1.0))
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS, weights="int4")
    return folder / "bundle"


def rows(backbone, texts=TEXTS[:40]):
    return backbone.encoder().encode(texts, 40).inputs


@pytest.mark.parametrize("form", ["as stored", "lowered"])
@pytest.mark.parametrize("method", KINDS)
def test_a_delta_answers_as_pytorch_does_with_the_rounded_weights(
    four, backbone, deltas, rounded, monkeypatch, method, form
):
    """Activations in float32, by the stored graph and by MatMulNBits."""
    if form == "as stored":
        monkeypatch.setattr("edgepeft.runtime.session.lower_groups", lambda model, accuracy_level: None)
    monkeypatch.setattr("edgepeft.runtime.session.lacks_dot_product", lambda: True)
    inputs = rows(backbone)
    found = run_session(open_session(Bundle(four).graph(method), four, 1), "logits", inputs)
    exact_logits(deltas[method], rounded, inputs).require(found)


def test_activations_of_8_bits_lose_far_less_than_the_weights_do_and_a_row_depends_on_no_other(
    four, backbone, deltas, rounded
):
    runtime, inputs = Runtime(four, threads=1), rows(backbone)
    together = runtime.logits("lora", inputs)
    whole, four_ = (exact_logits(deltas["lora"], model, inputs).value for model in (load_model(backbone), rounded))
    assert 0 < np.abs(together - four_).max() < 0.2 * np.abs(four_ - whole).max()
    alone = np.concatenate([runtime.logits("lora", rows(backbone, [text])) for text in TEXTS[:12]])
    assert np.median(np.abs(together[:12] - alone)) < 1e-6 and np.abs(together[:12] - alone).max() < 2e-2


def test_rows_that_are_no_whole_groups_stay_in_8_bits(tiny, tmp_path):
    plain = open_backbone(str(tiny("bert", hidden_size=40, intermediate_size=64, **SIZES)))
    write_backbone(plain, tmp_path, "int4")
    stored = set(Bundle(tmp_path).checkpoint.tensors)
    assert sum(name.endswith(":int4") for name in stored) == 2  # the feed-forward's second of each layer reads 64
    assert sum(name.endswith(":int8:transposed") for name in stored) == 2 * 5 and f"{WORDS}:int8" in stored
    inputs = rows(plain, TEXTS[:5])
    found = [
        open_session(model, folder, 1).run(["last_hidden_state"], inputs)[0]
        for model, folder in (
            (Bundle(tmp_path).backbone_graph, tmp_path),
            (plain.architecture.graph(plain.checkpoint), plain.folder),
        )
    ]
    assert 0 < np.abs(found[0] - found[1]).max() < 0.5 * np.abs(found[1]).max()


def test_the_manifest_the_info_and_what_counts_bytes_say_4_bits(four, backbone):
    stored = shown("info", four, "--json")["backbone"]
    assert stored["weights_dtype"] == "int4" and stored["bytes"] == (four / "model.int4.safetensors").stat().st_size
    assert not (four / "model.safetensors").exists()
    entry = Bundle(four).manifest.backbone
    assert entry.checkpoint_sha256 == backbone.sha256 and entry.sha256.weights != backbone.sha256
    cost = shown("cost", four, "--json")
    (products,) = (row for row in cost["by_operator"] if row["op"] == "Gemm")
    numbers = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    assert products["weight_bytes"] == numbers // 2 + 4 * numbers // 32
    assert packed_bytes(Bundle(four).backbone_graph.graph) == numbers // 2


def test_verbs_run_on_4_bits_and_a_page_does_not(four, backbone, tmp_path):
    done = edgepeft("run", four, "--task", "top-k", "w5 w6")
    assert done.returncode == 0 and done.stdout.startswith("top-k\t"), done
    assert edgepeft("verify", four).returncode == 0
    done = edgepeft("web", four, "--out", tmp_path / "site")
    assert done.returncode == 2 and "stands on 4-bit weights" in done.stderr and "--weights int8" in done.stderr
    done = edgepeft("export", "--backbone", four, "--delta", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2 and "8-bit or 4-bit weights" in done.stderr
    assert edgepeft("merge", four, "--task", "lora", "--out", tmp_path / "one").returncode == 0
    assert (tmp_path / "one/model.onnx").stat().st_size < backbone.weights.stat().st_size

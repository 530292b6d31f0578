"""How a decoder alone is stored: in 8 bits unless asked, with its quality stated, and refused where too much is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import random_delta, saved
from tiny import write_model
from transformers import AutoModelForCausalLM
from verbs import edgepeft, shown

import edgepeft as package
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.graph import quantise
from edgepeft.graph.grouped import in_eight_bits, in_four_bits
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.backbone import write_backbone

SIZES = {"hidden_size": 64, "vocab_size": 1100, "intermediate_size": 96}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A decoder's folder, and a delta's of it."""
    folder = tmp_path_factory.mktemp("decoder")
    backbone = open_backbone(str(write_model(folder / "model", "llama", **SIZES)))
    delta = random_delta(backbone, "lora", "t", None, settings={"rank": 2}, head="text")
    return backbone.folder, saved(delta, folder / "t")


def test_a_decoder_is_stored_in_8_bits_unless_asked_and_its_quality_is_stated(made: tuple[Path, Path], tmp_path: Path):
    backbone, delta = made
    manifest = package.export(backbone=backbone, delta=delta, out=tmp_path / "bundle").manifest
    assert manifest is not None and manifest.backbone.weights_dtype == "int8"
    stated = manifest.task("t").verification
    assert stated is not None and stated.text is not None
    assert 0 < stated.text.kl < stated.kl_tolerance == 0.05
    assert 64 < stated.text.tokens <= 64 * 8
    assert stated.text.perplexity == pytest.approx(stated.text.reference_perplexity, rel=0.05)
    found = shown("verify", tmp_path / "bundle", "--json")["findings"][1]["verification"]
    assert found["text"] == pytest.approx(stated.text.model_dump(), rel=1e-6)
    whole = package.export(backbone=backbone, delta=delta, out=tmp_path / "whole", weights="fp32").manifest
    assert whole is not None and whole.backbone.weights_dtype == "fp32"
    in_float32 = whole.task("t").verification
    assert in_float32 is not None and in_float32.text is not None and in_float32.kl_tolerance is None
    assert abs(in_float32.text.kl) < 1e-6 and in_float32.text.agreement == 1


@pytest.mark.parametrize("model_type", ["bert", "t5"])
def test_encoders_and_t5_stay_in_float32(tiny: Callable[..., Path], model_type: str):
    assert open_backbone(str(tiny(model_type))).architecture.weights_dtype == "fp32"


def coarse(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of 256 steps every 64th."""
    numbers, scales = in_eight_bits(matrix)
    return numbers // 64 * 64, scales


def coarse_in_4_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of 16 steps every 8th."""
    pairs, scales = in_four_bits(matrix)
    return pairs & 0x88, scales


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_broken_one_is_refused_with_its_figures_and_taken_if_that_is_asked_for(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
):
    monkeypatch.setattr(
        quantise, *{"int8": ("in_eight_bits", coarse), "int4": ("in_four_bits", coarse_in_4_bits)}[weights]
    )
    asked: list[Any] = ["export", "--backbone", made[0], "--delta", made[1], "--out", tmp_path / "bundle"]
    asked += ["--weights", weights]
    done = edgepeft(*asked)
    told = " ".join(done.stderr.split())
    assert done.returncode == 3 and "allowed: 0.05" in told and "perplexity" in told and "--accept-error" in told
    assert not (tmp_path / "bundle").exists()
    done = edgepeft(*asked, "--accept-error")
    assert done.returncode == 0 and "text beside PyTorch's" in done.stderr, done
    stated = json.loads((tmp_path / "bundle" / "edgepeft.json").read_text())["tasks"]["t"]["verification"]
    assert stated["kl_tolerance"] > stated["text"]["kl"] > 0.05
    assert edgepeft("verify", tmp_path / "bundle").returncode == 0


def test_a_task_that_is_added_is_held_to_the_same(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quantise, "in_eight_bits", coarse)
    backbone, delta = made
    bundle = tmp_path / "bundle"
    package.export(backbone=backbone, delta=delta, out=bundle, accept_error=True)
    other = saved(random_delta(open_backbone(str(backbone)), "lora", "o", None, head="text"), tmp_path / "o")
    asked: list[Any] = ["add", bundle, other, "--backbone", backbone]
    done = edgepeft(*asked)
    assert done.returncode == 3 and "task o: with quantised weights" in " ".join(done.stderr.split())
    assert edgepeft(*asked, "--accept-error").returncode == 0
    assert shown("info", bundle, "--json")["tasks"]


@pytest.mark.parametrize(("weights", "projections"), [("int8", "uint8"), ("int4", "int4")])
def test_an_output_matrix_of_its_own_has_8_bits_beside_the_table_of_words(
    made: tuple[Path, Path], tmp_path: Path, weights: Any, projections: str
):
    write_backbone(open_backbone(str(made[0])), tmp_path, weights)
    bundle = Bundle(tmp_path)
    stored = {
        name.partition(":")[0]: name.partition(":")[2] for name in bundle.checkpoint.tensors if "scale" not in name
    }
    assert {stored["lm_head.weight"], stored["model.embed_tokens.weight"]} == {"uint8"}
    assert stored["model.layers.0.self_attn.q_proj.weight"] == projections
    written = bundle.text_graphs.decoder.graph
    assert [node.op_type for node in written.node if "lm_head.weight" in node.output] == ["DequantizeLinear"]


def test_an_output_matrix_in_8_bits_writes_what_pytorch_writes_with_what_they_stand_for(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By a bundle of 8 bits, with activations in float32, beside transformers with what these 8 bits stand for."""
    monkeypatch.setattr("edgepeft.runtime.session.lacks_dot_product", lambda: True)
    backbone = open_backbone(str(made[0]))
    write_backbone(backbone, tmp_path, "int8")
    bundle = Bundle(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(str(made[0])).eval()
    model.load_state_dict({name: torch.tensor(bundle.checkpoint.read(name)) for name in backbone.architecture.tensors})
    ids = np.random.default_rng(0).integers(4, 1100, (5, 7))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    written = Runtime(tmp_path, threads=1, cache=False).generator.write(None, inputs, Decoding(12))
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    theirs = model.generate(**given, max_new_tokens=12, do_sample=False)[:, 7:]
    end = backbone.architecture.decoder.end_token_id
    assert [[*one.tokens] for one in written] == [[*takewhile(end.__ne__, row)] for row in theirs.tolist()]


def test_blocks_of_q4_0_are_taken_over_to_the_last_digit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gguf = pytest.importorskip("gguf", reason="pip install edgepeft[gguf]")
    from gguf_files import write_gguf

    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "tiny.gguf", quantisation="Q4_0")
    write_backbone(open_backbone(str(path)), tmp_path, "int4")
    ours = Bundle(tmp_path).checkpoint
    theirs = {each.name: gguf.dequantize(each.data, each.tensor_type) for each in gguf.GGUFReader(path).tensors}
    for name, in_file in (
        ("mlp.down_proj", "ffn_down"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
    ):
        for layer in range(2):
            assert f"model.layers.{layer}.{name}.weight:int4" in ours.tensors
            found = ours.read(f"model.layers.{layer}.{name}.weight")
            np.testing.assert_array_equal(found, theirs[f"blk.{layer}.{in_file}.weight"])

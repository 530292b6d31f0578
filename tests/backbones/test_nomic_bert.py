"""Nomic BERT and GTE beside transformers 5's own states, whichever is installed, and how their files name things."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from graphs import build, require_files_own_weights, session
from safetensors.numpy import load_file, save_file
from tiny import ROTARY

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("model_type", ROTARY)
def test_hidden_states_equal_transformers_5s(model_type: str):
    backbone, rows = open_backbone(str(GOLDEN / model_type)), load_file(GOLDEN / model_type / "states.safetensors")
    feed = {name: rows[name] for name in backbone.architecture.inputs}
    (ours,) = session(build(backbone), backbone.folder).run(["last_hidden_state"], feed)
    real = rows["attention_mask"].astype(bool)
    np.testing.assert_allclose(ours[real], rows["hidden"][real], rtol=0, atol=float(rows["error"]))


@pytest.mark.parametrize("model_type", ROTARY)
def test_what_a_file_holds_fused_lies_apart_in_a_copy_that_is_not_copied_again(model_type: str):
    stored = load_file(GOLDEN / model_type / "model.safetensors")
    require_files_own_weights(GOLDEN / model_type, "")
    backbone = open_backbone(str(GOLDEN / model_type))
    (fused,) = (
        values
        for name, values in stored.items()
        if name.endswith(("1.attn.Wqkv.weight", "1.attention.qkv_proj.weight"))
    )
    parts = [backbone.checkpoint.read(f"layers.1.self_attn.{part}_proj.weight") for part in "qkv"]
    np.testing.assert_array_equal(np.concatenate(parts), fused)
    assert open_backbone(str(backbone.folder)).folder == backbone.folder


@pytest.mark.parametrize(("model_type", "prefix"), [("gte", "new."), ("gte", "gte."), ("nomic_bert", "nomic_bert.")])
def test_whole_models_are_read_past_their_prefix(model_type: str, prefix: str, tmp_path: Path):
    shutil.copytree(GOLDEN / model_type, tmp_path / "whole")
    tensors = load_file(tmp_path / "whole/model.safetensors")
    save_file({prefix + name: values for name, values in tensors.items()}, tmp_path / "whole/model.safetensors")
    of = prefix.replace("new.", "gte.")
    assert require_files_own_weights(tmp_path / "whole", of).graph.node


def test_a_file_without_a_layers_gate_is_no_such_model(tmp_path: Path):
    shutil.copytree(GOLDEN / "nomic_bert", tmp_path / "m")
    tensors = load_file(tmp_path / "m/model.safetensors")
    del tensors["encoder.layers.1.mlp.fc12.weight"]
    save_file(tensors, tmp_path / "m/model.safetensors")
    with pytest.raises(BundleError, match=r"lacks 1 of the tensors .*layers\.1\.mlp\.gate_proj\.weight"):
        _ = open_backbone(str(tmp_path / "m")).checkpoint

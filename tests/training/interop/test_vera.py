"""PEFT's VeRA: what no delta can represent, and what we write in PEFT's own model."""

import pytest
import torch
import transformers
from checkpoints import GOLDEN, backbone_of, changed_copy, imported
from deltas import random_delta
from safetensors.torch import load_file, save_file
from tiny import ragged
from tolerance import exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError
from edgepeft.training.interop.peft import Peft


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"projection_prng_key": 1}, r"base_model\.vera_A is not what projection_prng_key = 1 gives in PEFT"),
        ({"projection_prng_key": 2**32}, "projection_prng_key must be a number under"),
        ({"bias": "vera_only"}, "no delta can represent bias = 'vera_only'"),
        ({"save_projection": False}, r"not known: base_model\.vera_A, base_model\.vera_B"),
        ({"target_modules": ["query", "value", "pooler.dense"]}, r"no linear layer .*: bert\.pooler\.dense\. Train it"),
    ],
)
def test_what_no_delta_can_represent_is_refused_by_name(settings, named, tmp_path):
    with pytest.raises(BundleError, match=named):
        imported(changed_copy(GOLDEN / "bert-vera", tmp_path / "copy", **settings), backbone_of("bert"))


def test_matrices_of_another_hand_are_refused(tmp_path):
    folder = changed_copy(GOLDEN / "bert-vera", tmp_path / "copy")
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["base_model.vera_B"][3, 2] += 1e-3
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(BundleError, match=r"vera_B is not what .* Save it in float32"):
        imported(folder, backbone_of("bert"))


@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_peft_loads_our_delta_with_equal_logits(model_type, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    folder = tiny(model_type)
    backbone = open_backbone(str(folder))
    settings = {"rank": 9, "seed": 5, "roles": ("key", "ffn_up", "ffn_output"), "skip_layers": 1}
    delta = random_delta(backbone, "vera", "task", ("a", "b", "c"), settings=settings)
    Peft().write(delta, backbone, tmp_path / "out")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval().double()
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    inputs = {name: inputs[name] for name in backbone.architecture.inputs}
    with torch.no_grad():
        expected = exactly(lambda: {"logits": theirs(**inputs).logits})["logits"]
        expected.require(delta.logits(load_model(backbone, "eager"), inputs).numpy())
    again = imported(tmp_path / "out", backbone).tensors()
    assert all(torch.equal(again[name], tensor) for name, tensor in delta.tensors().items())

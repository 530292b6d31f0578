"""Damaged and hostile files: an expected error that names the file, never a traceback, never a huge allocation."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graphs import build
from safetensors.numpy import load_file, save_file

from edgepeft.backbones.base import family_of
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, EdgepeftError, UnknownName, UsageError
from edgepeft.runtime.runtime import Runtime


@pytest.fixture
def copied(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny("bert"), folder)
    return folder


def header(folder: Path) -> tuple[dict[str, Any], bytes]:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def rewrite(folder: Path, new: Any, data: bytes) -> None:
    text = new if isinstance(new, bytes) else json.dumps(new).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as refused:
        build(open_backbone(str(folder)))
    assert "model.safetensors" in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kept", [0, 3, 8, 100, -1])
def test_a_truncated_file_is_refused(copied: Path, kept: int):
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refusal(copied)


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 64, b"not a checkpoint at all", struct.pack("<Q", 1 << 60), struct.pack("<Q", 90_000_000) + b"{}"],
)
def test_another_kind_of_file_is_refused(copied: Path, content: bytes):
    (copied / "model.safetensors").write_bytes(content)
    refusal(copied)


@pytest.mark.parametrize("text", [b"[]", b"null", b"{", b'{"a": 1}', b'{"a": {}}', b"[" * 100_000, b"\xff\xfe{}"])
def test_a_header_that_is_no_table_of_tensors_is_refused(copied: Path, text: bytes):
    rewrite(copied, text, b"")
    refusal(copied)


@pytest.mark.parametrize(
    "lie",
    [
        {"data_offsets": [-8, 0]},
        {"data_offsets": [0, 1 << 50]},
        {"data_offsets": [128, 0]},
        {"data_offsets": ["a", "b"]},
        {"data_offsets": [0]},
        {"shape": [-32]},
        {"shape": ["x"]},
        {"shape": None},
        {"shape": [7]},
        {"dtype": "F16"},
        {"dtype": "I32"},
        {"dtype": 7},
    ],
    ids=str,
)
def test_a_header_that_lies_about_a_tensor_is_refused(copied: Path, lie: dict[str, Any]):
    table, data = header(copied)
    table["embeddings.LayerNorm.weight"] |= lie
    rewrite(copied, table, data)
    refusal(copied)


def test_a_tensor_of_another_shape_is_refused_by_name_with_both_shapes(copied: Path):
    path = copied / "model.safetensors"
    tensors = load_file(path)
    name = "encoder.layer.1.output.dense.weight"
    save_file(tensors | {name: tensors[name].T.copy()}, path)
    said = refusal(copied)
    assert name in said
    assert "[48, 32]" in said
    assert "[32, 48]" in said


def test_berts_weights_are_no_roformers(copied: Path):
    path = copied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "roformer"}))
    said = refusal(copied)
    assert "embeddings.position_embeddings.weight" in said and "'roformer'" in said


# Weights -> a model type that other such weights have, and what it would read that these have not.
_UNDER = {
    "modernbert": ("bert", "embeddings.word_embeddings.weight"),
    "deberta-v2": ("bert", "embeddings.position_embeddings.weight"),
    "bert": ("deberta-v2", "encoder.layer.0.attention.self.query_proj.weight"),
    "albert": ("bert", "encoder.layer.0.attention.self.query.weight"),
    "distilbert": ("bert", "embeddings.token_type_embeddings.weight"),
    "mpnet": ("roberta", "encoder.layer.0.attention.self.query.weight"),
    "roberta": ("roberta-prelayernorm", "encoder.layer.0.attention.LayerNorm.weight"),
    "megatron-bert": ("bert", "encoder.layer.0.attention.output.LayerNorm.weight"),
}


@pytest.mark.parametrize("weights", _UNDER)
def test_weights_of_another_family_are_refused_under_a_known_model_type(
    tiny: Callable[..., Path], tmp_path: Path, weights: str
):
    model_type, lacks = _UNDER[weights]
    folder = Path(shutil.copytree(tiny(model_type), tmp_path / "model"))
    shutil.copyfile(tiny(weights) / "model.safetensors", folder / "model.safetensors")
    said = refusal(folder)
    assert f"config.json, of model_type {model_type!r}, asks for" in said and lacks in said


def test_a_missing_tensor_is_named(copied: Path):
    path = copied / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, path)
    assert "encoder.layer.1.output.dense.bias" in refusal(copied)


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "model.encoder."])
def test_names_of_a_model_within_another_are_told_with_what_to_take_off(copied: Path, wrapper: str):
    path = copied / "model.safetensors"
    save_file({wrapper + name: tensor for name, tensor in load_file(path).items()}, path)
    assert f"Take '{wrapper}' off its tensors' names" in refusal(copied)


POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"  # as a clone without LFS has it
)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_said_to_be_one(copied: Path, name: str):
    (copied / name).write_text(POINTER)
    with pytest.raises(BundleError, match=f"{name}.* It is Git LFS' pointer to the file: git lfs pull fetches that"):
        open_backbone(str(copied)).encoder()


@pytest.mark.parametrize("name", ["tasks/mood.onnx", "model.safetensors", "backbone.onnx", "tokenizer.json"])
def test_a_pointer_in_a_bundle_is_said_to_be_one(bundle: Path, name: str):
    (bundle / name).write_text(POINTER)
    with (
        pytest.raises(BundleError, match=rf"{name} .*git lfs pull fetches that\."),
        Runtime(bundle, cache=False) as runtime,
    ):
        runtime.predict("mood", "w5")


CONFIG = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": -32}, "hidden_size"),
        ({"hidden_size": 33}, "hidden_size is 33, not a multiple of its 4 num_attention_heads"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**6}, "layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"layer_norm_eps": 0}, "layer_norm_eps"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps"),
        ({"pad_token_id": -1}, "pad_token_id"),
        ({"pad_token_id": 60}, "pad_token_id is 60, beyond its vocabulary of 60"),
        ({"hidden_act": "swiglu"}, "gelu_new"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; bert has absolute"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num is 2; albert has 1"),
        ({"model_type": "albert", "num_hidden_groups": 3}, "num_hidden_groups is 3, more than its 2 layers"),
        ({"model_type": "albert", "num_hidden_groups": 0}, "num_hidden_groups"),
        ({"model_type": "roformer", "rotary_value": True}, "rotary_value is True; roformer has False"),
        ({"model_type": "roformer", "num_attention_heads": 32}, "num_attention_heads is 32, which does not divide"),
        (
            {"model_type": "gte", "rope_scaling": {"type": "ntk", "factor": 8.0}},
            "rope_scaling has the rope_type 'ntk'; supported: default",
        ),
        (
            {"model_type": "nomic_bert", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0}},
            "rope_parameters has the rope_type 'dynamic'",
        ),
        ({"model_type": "nomic_bert", "rope_theta": 0}, "rope_theta must be a number from 1 on; found 0"),
        ({"model_type": "nomic_bert", "head_dim": 9}, "head_dim is 9; supported: 8"),
        (
            {"model_type": "gte", "hidden_act": "mish"},
            "hidden_act is 'mish'; supported: gelu, gelu_new, gelu_pytorch_tanh, relu, silu",
        ),
        (
            {"model_type": "bert", "hidden_act": "silu"},
            "hidden_act is 'silu'; supported: gelu, gelu_new, gelu_pytorch_tanh, relu.",
        ),
        ({"model_type": "roformer", "hidden_act": "relu"}, "hidden_act is 'relu'; roformer has gelu"),
        (
            {"model_type": "xlm-roberta-xl", "pad_token_id": 1, "position_embedding_type": "relative_key"},
            "'relative_key'",
        ),
        ({"model_type": "distilbert", "position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"model_type": "ernie", "use_task_id": True, "task_type_vocab_size": "3"}, "task_type_vocab_size"),
        ({"model_type": "roberta", "pad_token_id": 63}, "pad_token_id"),
        ({"model_type": "mpnet", "pad_token_id": 0}, "pad_token_id is 0; mpnet has 1"),
        ({"model_type": "mpnet", "pad_token_id": 1, "relative_attention_num_buckets": 8}, "buckets is 8; mpnet has 32"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_that_cannot_be_is_refused_by_its_key(change: dict[str, Any], said: str):
    config = CONFIG | change
    with pytest.raises(UsageError) as refused:
        family_of(config).architecture(config)
    assert said in str(refused.value)


@pytest.mark.parametrize("model_type", [None, 3, ["bert"], {}])
def test_a_config_without_a_model_type_is_refused(model_type: Any):
    with pytest.raises(UsageError, match="model_type"):
        family_of({"model_type": model_type})


def test_an_unknown_model_type_gets_the_nearest_known_one():
    with pytest.raises(UnknownName, match="Did you mean 'roberta'"):
        family_of({"model_type": "robertta"})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, '{"model_type": "bert"'])
def test_a_config_that_is_no_json_object_is_refused(copied: Path, text: str):
    (copied / "config.json").write_text(text)
    with pytest.raises(EdgepeftError, match=r"config\.json"):
        open_backbone(str(copied)).architecture  # noqa: B018


def test_a_folder_without_config_is_a_usage_error(copied: Path):
    (copied / "config.json").unlink()
    with pytest.raises(UsageError, match=r"no config\.json"):
        open_backbone(str(copied))


def test_a_tokenizer_that_is_none_is_refused(copied: Path):
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        open_backbone(str(copied)).encoder()

"""GGUF files, written by the gguf library, give transformers' logits; what is damaged or unknown is refused whole."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gguf", reason="pip install edgepeft[gguf]")

from gguf import GGUFReader
from gguf_files import ROPE, write_gguf
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, MissingPackage, UsageError

IDS = np.array([[4, 9, 11, 5, 7]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


@pytest.mark.parametrize("quantisation", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_weights_config_and_tokenizer_are_what_transformers_reads(tmp_path, architecture, quantisation):
    path = write_gguf(tmp_path / "tiny.gguf", architecture, quantisation)
    backbone = open_backbone(str(path))
    where = {"pretrained_model_name_or_path": str(tmp_path), "gguf_file": path.name}
    theirs = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    ours = AutoModelForCausalLM.from_pretrained(str(backbone.folder)).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(torch.tensor(IDS)).logits, theirs(torch.tensor(IDS)).logits, rtol=0, atol=0)
    assert backbone.source == "tiny.gguf"
    text = "ab a cd, cab"
    tokenizer = Tokenizer.from_file(str(backbone.folder / "tokenizer.json"))
    assert tokenizer.encode(text).ids == AutoTokenizer.from_pretrained(**where)(text)["input_ids"]


def test_a_file_is_converted_once(tmp_path, cache):
    path = write_gguf(tmp_path / "tiny.gguf")
    first = open_backbone(str(path)).weights.stat().st_mtime_ns
    shutil.copy(path, tmp_path / "again.gguf")
    assert open_backbone(str(tmp_path / "again.gguf")).weights.stat().st_mtime_ns == first
    assert len([*cache.iterdir()]) == 1


def test_llama_3s_scaling_is_told_by_its_divisors_and_another_refused(tmp_path):
    # Of config.json of Llama-3.2-1B: factor 32, low 1, high 4, 8192 tokens before; theta 500,000.
    theta, width = 500_000.0, 8
    w = theta ** -(np.arange(0, width, 2) / width)
    length = 2 * np.pi / w
    smooth = (8192 / length - 1) / 3
    divisors = np.where(length > 8192, 32, np.where(length < 2048, 1, 1 / ((1 - smooth) / 32 + smooth)))
    path = write_gguf(tmp_path / "scaled.gguf", theta=theta, more={ROPE: divisors.astype(np.float32)})
    kind = open_backbone(str(path)).architecture.attention[0]
    np.testing.assert_allclose(kind.frequencies, w / divisors, rtol=1e-6)
    path = write_gguf(tmp_path / "other.gguf", theta=theta, more={ROPE: np.full(4, 3, np.float32)})
    with pytest.raises(UsageError, match="scales RoPE by rope_freqs"):
        open_backbone(str(path))


def test_linear_scaling_is_read_and_yarn_refused(tmp_path):
    path = write_gguf(tmp_path / "linear.gguf", scaling=("linear", 4.0))
    w = 10_000.0 ** -(np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(open_backbone(str(path)).architecture.attention[0].frequencies, w / 4, rtol=1e-6)
    with pytest.raises(UsageError, match="scales RoPE yarn"):
        open_backbone(str(write_gguf(tmp_path / "yarn.gguf", scaling=("yarn", 4.0))))


def test_heads_of_a_width_that_transformers_does_not_read_are_of_the_files(tmp_path):
    backbone = open_backbone(str(write_gguf(tmp_path / "narrow.gguf", "qwen3", width=16)))
    assert backbone.architecture.tensors["model.layers.0.self_attn.k_norm.weight"] == (16,)
    written = GGUFReader(tmp_path / "narrow.gguf")
    (keys,) = (tensor.data for tensor in written.tensors if tensor.name == "blk.1.attn_k.weight")
    np.testing.assert_array_equal(backbone.checkpoint.read("model.layers.1.self_attn.k_proj.weight"), keys)


@pytest.mark.parametrize(
    ("split", "words"),  # by the models' own rules: each digit is a word; up to three are one
    [
        ("smollm", ["in", "Ġ", "1", "2", "3", "4", "ĊĊ", "5", ".", "Ġab", "ĠĠ", "6"]),
        ("llama-bpe", ["in", "Ġ", "123", "4", "ĊĊ", "5", ".", "Ġab", "Ġ", "Ġ", "6"]),
        ("gpt-2", ["in", "Ġ1234", "Ċ", "Ċ", "5", ".", "Ġab", "Ġ", "Ġ6"]),
    ],
)
def test_texts_are_split_as_the_file_says(tmp_path, split, words):
    backbone = open_backbone(str(write_gguf(tmp_path / "split.gguf", split=split)))
    tokenizer = Tokenizer.from_file(str(backbone.folder / "tokenizer.json"))
    found = tokenizer.pre_tokenizer.pre_tokenize_str("in 1234\n\n5. ab  6")
    assert [word for word, _ in found] == words
    with pytest.raises(UsageError, match=r"splits texts as 'tekken' .* of llama; what is: default, gpt-2, smollm"):
        open_backbone(str(write_gguf(tmp_path / "other.gguf", split="tekken")))


@pytest.mark.parametrize("kept", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_one_error_and_leaves_nothing_in_the_cache(tmp_path, cache, kept):
    path = write_gguf(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(BundleError, match=r"tiny\.gguf cannot be read as a GGUF file"):
        open_backbone(str(path))
    assert not cache.exists() or not [*cache.iterdir()]


def test_an_architecture_a_quantisation_and_a_file_that_are_not_known_are_refused_by_name(tmp_path, cache):
    with pytest.raises(UsageError, match="architecture 'phi3'; GGUF files can be llama, qwen2, qwen3, gemma3"):
        open_backbone(str(write_gguf(tmp_path / "phi.gguf", "llama", called="phi3")))
    with pytest.raises(UsageError, match="tensors of the type IQ4_NL"):
        open_backbone(str(write_gguf(tmp_path / "iq.gguf", quantisation="IQ4_NL")))
    (tmp_path / "notes.txt").write_text("GG")
    with pytest.raises(UsageError, match=r"notes\.txt is no GGUF file"):
        open_backbone(str(tmp_path / "notes.txt"))
    assert not cache.exists() or not [*cache.iterdir()]


def test_a_tensor_that_is_not_there_is_named_and_not_drawn_by_chance(tmp_path, cache):
    path = write_gguf(tmp_path / "part.gguf", without=("blk.1.ffn_up.weight",))
    with pytest.raises(BundleError, match=r"no tensor for model\.layers\.1\.mlp\.up_proj\.weight"):
        open_backbone(str(path))
    assert not [*cache.iterdir()]


def test_without_the_library_it_is_said_what_to_install(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackage, match=r"pip install 'edgepeft\[gguf\]'"):
        open_backbone(str(path))

"""Tiny random GGUF files, written by the gguf library as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

ROPE = "rope_freqs.weight"
D, FEED_FORWARD, LAYERS, HEADS, GROUPS = 32, 64, 2, 4, 2
WIDTHS = {"qwen3": 128, "gemma3": 256}  # what transformers takes where it reads none; the others' are d / heads
WORDS = ["<unk>", "<s>", "</s>", *(chr(c) for c in range(ord("a"), ord("z") + 1)), *"ĠĊ", "ab", "cd", "Ġa"]
WORDS += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # Qwen's, which transformers adds, as it does Gemma's
WORDS += ["<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
_MERGES = ["a b", "c d", "Ġ a"]
_NORMED, _PAST = ("qwen3", "gemma3"), ("post_attention_norm", "post_ffw_norm")


def write_gguf(
    path: Path,
    architecture: str = "llama",
    quantisation: str = "F32",
    *,
    called: str = "",
    theta: float = 10_000.0,
    scaling: tuple[str, float] | None = None,
    more: Mapping[str, NDArray[np.float32]] | None = None,
    without: tuple[str, ...] = (),
    width: int | None = None,
    split: str | None = None,
) -> Path:
    """Matrices are quantised, vectors are not; ``called`` is the architecture's name in the file, ``width`` a head's."""
    width = width or WIDTHS.get(architecture, D // HEADS)
    writer = gguf.GGUFWriter(path, called or architecture)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    if architecture == "gemma3":
        writer.add_sliding_window(32)
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling[0])
        writer.add_rope_scaling_factor(scaling[1])
    _add_tokenizer(writer, architecture)
    if split is not None:
        writer.add_tokenizer_pre(split)
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, values in {**_tensors(architecture, width), **(more or {})}.items():
        if name in without:
            continue
        if values.ndim == 1 or kind is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        elif quantisation == "IQ4_NL":  # which the library reads, and cannot write: blocks of 18 bytes a 32 numbers
            blocks = np.zeros((values.shape[0], values.shape[1] // 32 * 18), np.uint8)
            writer.add_tensor(name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, architecture: str) -> None:
    writer.add_tokenizer_model("llama" if architecture == "gemma3" else "gpt2")
    words = [word.replace("Ġ", "▁") for word in WORDS] if architecture == "gemma3" else WORDS
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("<") else 1 for word in WORDS])
    if architecture == "gemma3":
        writer.add_token_scores([-float(i) for i in range(len(WORDS))])
    writer.add_token_merges([merge.replace("Ġ", "▁") for merge in _MERGES] if architecture == "gemma3" else _MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)


def _tensors(architecture: str, width: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4)).astype(np.float32)

    tensors = {"token_embd.weight": drawn(len(WORDS), D), "output_norm.weight": 1 + drawn(D)}
    for i in range(LAYERS):
        block = f"blk.{i}."
        queries, keys = HEADS * width, GROUPS * width
        shapes = {"attn_q": (queries, D), "attn_k": (keys, D), "attn_v": (keys, D), "attn_output": (D, queries)}
        shapes |= {"ffn_gate": (FEED_FORWARD, D), "ffn_up": (FEED_FORWARD, D), "ffn_down": (D, FEED_FORWARD)}
        tensors |= {f"{block}{name}.weight": drawn(*shape) for name, shape in shapes.items()}
        norms = ["attn_norm", "ffn_norm", *(_PAST if architecture == "gemma3" else ())]
        tensors |= {f"{block}{name}.weight": 1 + drawn(D) for name in norms}
        if architecture in _NORMED:
            tensors |= {f"{block}attn_{part}_norm.weight": 1 + drawn(width) for part in "qk"}
        if architecture == "qwen2":
            tensors |= {f"{block}attn_{p}.bias": drawn(shapes[f"attn_{p}"][0]) for p in "qkv"}
    return tensors

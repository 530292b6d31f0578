"""Small random models in HF layout, with nothing in them that could hide a mistake.

A fresh HF model has zero biases, unit LayerNorms and nearly flat attention: a graph that lost a bias, or
confused key and query, would still agree with it.  Here all of those are random, and attention is sharp.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

OWN_LAYERS = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")  # no two share a tensor
MODEL_TYPES = (*OWN_LAYERS, "albert")
PRE_NORM = ("xlm-roberta-xl", "roberta-prelayernorm", "megatron-bert")
ROTARY = ("nomic_bert", "gte")  # of transformers 5
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
SAME_BUT_FOR_NAMES = ("camembert", "data2vec-text", "ernie", "rembert")  # parity shows what there is to be shown

_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-6,  # neither family's default
}
_ROBERTA = _BERT | {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 3,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SIZES: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _BERT | {"embedding_size": 32},
    "mpnet": {name: value for name, value in _ROBERTA.items() if name != "type_vocab_size"},
    "albert": _BERT | {"num_hidden_layers": 3, "num_hidden_groups": 2, "embedding_size": 16},  # 0, 0, 1
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "ernie": _BERT | {"use_task_id": True, "task_type_vocab_size": 5},
    "rembert": _BERT | {"input_embedding_size": 20},
    "roformer": _BERT | {"embedding_size": 20},
    "nomic_bert": _BERT | {"hidden_act": "silu"},
    "gte": _BERT | {"type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu"},
    "xlm-roberta-xl": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    "megatron-bert": _BERT,
    "distilbert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "vocab_size": 60,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    "modernbert": {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 60,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
        "norm_eps": 1e-4,  # not the default
        "local_attention": 7,  # three to each side
        "global_attn_every_n_layers": 2,
        "reference_compile": False,
    },
    "deberta-v2": {name: value for name, value in _BERT.items() if name != "type_vocab_size"}
    | {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "max_relative_positions": 24,
    },
    "t5": {
        "d_model": 32,
        "d_kv": 6,  # not d_model / num_heads
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "vocab_size": 60,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "decoder_start_token_id": 0,
        "layer_norm_epsilon": 1e-5,
    },
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": 56},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 10},  # not hidden_size / num_attention_heads
    "gemma3_text": _LLAMA
    | {"head_dim": 10, "query_pre_attn_scalar": 10, "num_hidden_layers": 3, "sliding_window": 56}
    | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": True},
}
# Whose attention tests compare with.  ModernBERT's eager one has its softmax in float32 whatever the model is in, where
# a mask of float64 is infinite, and a row of padding whose window is padding has no number.
REFERENCES = {"modernbert": "sdpa"}
# Labels that a decoder writes, of several words too: the last of the vocabulary.
WORDS = {56: "no", 57: "perhaps", 58: "yes", 59: "not"}


def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every parameter random: matrices keep the scale of what they read, queries and keys sharpen attention."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # RoFormer's table of sines, which nothing trains
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in name.lower()
        if parameter.dim() == 2:
            sharp = any(
                part in name
                for part in ("query", "key", "q_lin", "k_lin", "Attention.q", "Attention.k", "attn.q", "attn.k", "Wqkv")
            )
            embedding = any(part in name for part in ("embeddings.", "shared.", "attention_bias.", "embed_tokens."))
            scale = 0.5 if embedding else (1.3 if sharp else 1.0) * parameter.shape[1] ** -0.5
            parameter.data = scale * noise
        elif norm and name.endswith("weight"):
            parameter.data = 1 + 0.3 * noise
        else:
            parameter.data = 0.3 * noise
    return model.eval()


def known(*model_types: str) -> list[str]:
    """Those of which the transformers that is installed has a model."""
    return [model_type for model_type in model_types if model_type in transformers.CONFIG_MAPPING]


def write_model(folder: Path, model_type: str, *, seed: int = 0, mean: bool = False, **sizes: Any) -> Path:
    """A random base model with a tokenizer; ``mean`` adds sentence-transformers' note on pooling."""
    config = transformers.AutoConfig.for_model(model_type, **(SIZES[model_type] | sizes))
    of = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModel
    of = transformers.AutoModelForCausalLM if model_type in DECODERS else of
    model = randomise(of.from_config(config, attn_implementation="eager"), seed)
    model.save_pretrained(folder)
    words = WORDS if config.is_encoder_decoder else {}
    write_tokenizer(folder / "tokenizer.json", config.pad_token_id, config.vocab_size, words)
    if mean:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def write_tokenizer(path: Path, pad: int, vocab_size: int, words: Mapping[int, str] = MappingProxyType({})) -> None:
    """Words w5, w6, ... by their own id, but for those given, in BERT's template; RoBERTa pads with 1, others with 0."""
    first, last = (0, 2) if pad == 1 else (2, 3)
    special = {pad: "[PAD]", first: "[CLS]", last: "[SEP]"}
    unknown = 3 if pad == 1 else 1
    special[unknown] = "[UNK]"
    vocabulary = {(special | dict(words)).get(i, f"w{i}"): i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", last), ("[CLS]", first))
    tokenizer.save(str(path))


def ragged(batch: int, length: int, config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Token ids, mask and token types [batch, length] int64: rows of every length, one full, one of a single token."""
    source = np.random.default_rng(seed)
    lengths = source.integers(1, length + 1, batch)
    lengths[0], lengths[-1] = length, 1 if batch > 1 else length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    ids = source.integers(5, config["vocab_size"], (batch, length))
    types = source.integers(0, max(config.get("type_vocab_size", 1), 1), (batch, length))
    ids = np.where(mask == 1, ids, config["pad_token_id"])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def with_outliers(folder: Path, out: Path) -> Path:
    """A copy with two channels behind each norm that stand out, as in models that were trained."""
    copy = Path(shutil.copytree(folder, out / "outliers"))
    tensors = load_file(copy / "model.safetensors")
    for name, values in tensors.items():
        if name.endswith(("LayerNorm.weight", "layer_norm.weight")):
            values[[5, -12]] *= 9
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy

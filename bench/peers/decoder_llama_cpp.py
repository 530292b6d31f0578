"""Text by llama.cpp's server (xllamacpp), in its process: a slot a row, from a GGUF file in 4 or 8 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers._writing import require_all
from edgepeft.bench.planning.job import Job, Prepared

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROOM = 64  # tokens of a slot beyond those that are read and written


def export(folder: Path, out: Path, form: str) -> None:
    """Write the model; gguf is needed beside it.  Words are made up, for tokens are given as numbers."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out / "model.gguf", "llama")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{number}" for number in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_token_merges(["w 0"])
    kind = gguf.GGMLQuantizationType[form]
    for name, values in load_file(folder / "model.safetensors").items():
        named = _named(name)
        if values.ndim == 1:
            writer.add_tensor(named, values)
            continue
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        own = heads.get(named.split(".")[-2])
        rows = values if own is None else _neighbours(values, own)
        writer.add_tensor(named, gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_PARTS[rest.removesuffix('.weight')]}.weight"


def _neighbours(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of halves as llama.cpp has them: what is turned together stands together."""
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape))


def write(job: Job) -> Prepared:
    """Its server without HTTP; a request for each row, all at once, without the cache of prompts."""
    import xllamacpp

    rows = max(map(len, job.batches))
    options = xllamacpp.CommonParams()
    options.model.path = str(job.model)
    options.n_parallel = rows
    options.n_ctx = rows * (max(map(max, job.batches)) + job.new_tokens + _ROOM)
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = job.threads
    options.warmup = False
    server = xllamacpp.Server(options)

    def step(batch: int) -> None:
        ids = job.batch(batch)["input_ids"].tolist()
        asked = {"n_predict": job.new_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        found: Any = server.handle_completions({"prompt": ids, **asked})
        whole = [each for each in found["choices"] if each["finish_reason"] == "length"]
        require_all([found["usage"]["completion_tokens"]] * len(whole), job.new_tokens)
        require_all([len(whole)], len(ids))

    return Prepared(step)

"""BERT with rotary positions in the place of learnt ones: RoFormer, Nomic BERT and GTE.

RoFormer (Su et al., 2021, arXiv:2104.09864) rotates pairs of neighbours.  Nomic BERT (Nussbaum et al., 2024,
arXiv:2402.01613) and GTE (Zhang et al., 2024, arXiv:2407.19669), in transformers from version 5 on, rotate halves and
have gated feed-forwards; they are post-LN:

    y = LN(z + W2 (act(W_gate z) * W_up z))

Their files keep query, key and value as one matrix, and GTE's up and gate: a copy by the names of transformers' modules
is made once.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgepeft.backbones.encoder import ACTIVATIONS, ENCODERS, Encoder, ModelLayout

_ROFORMER = ModelLayout(
    prefix="roformer.",
    positions=False,
    rotary="neighbours",
    theta=10_000.0,
    projection="embeddings_project",
    masked="",  # each key is turned by its place
    head="electra",  # with GELU in both
    fixed={**ENCODERS, "rotary_value": False, "hidden_act": "gelu", "rope_theta": 10_000.0},
)
_GTE = ModelLayout(
    prefix="gte.",
    layer="layers.{i}.",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    ffn_norm="post_mlp_layernorm",
    unbiased=("mlp.gate_proj", "mlp.up_proj"),
    positions=False,
    rotary="halves",
    theta=160_000.0,
    masked="",  # each key is turned by its place
    foreign_head="pooler.dense",
    activations=(*ACTIVATIONS, "silu"),
    defaults={"pad_token_id": 1, "type_vocab_size": 1},
)
_NOMIC = {
    "nomic_bert": replace(
        _GTE,
        prefix="nomic_bert.",
        unbiased=("_proj",),
        theta=1_000.0,
        defaults={"activation": "silu", "pad_token_id": 0},
    ),
    "gte": _GTE,
}
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
# What files call it -> transformers' modules.
_STORED: Mapping[str, tuple[str, ...]] = {
    r"^new\b": ("gte",),
    r"\bemb_ln\b": ("embeddings.LayerNorm",),
    r"\bencoder\.layers?\b": ("layers",),
    r"\b(attn\.Wqkv|attention\.qkv_proj)\b": _QKV,
    r"\b(attn\.out|attention\.o)_proj\b": ("self_attn.o_proj",),
    r"\bmlp\.up_gate_proj\b": ("mlp.up_proj", "mlp.gate_proj"),
    r"\bmlp\.fc11\b": ("mlp.up_proj",),
    r"\bmlp\.fc12\b": ("mlp.gate_proj",),
    r"\bmlp\.fc2\b": ("mlp.down_proj",),
    r"\b(norm1|attn_ln)\b": ("post_attention_layernorm",),
    r"\b(norm2|mlp_ln)\b": ("post_mlp_layernorm",),
}


class NomicBert(Encoder):
    """Nomic BERT and GTE, of transformers 5."""

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, without token types where the config has none."""
        return replace(super().layout_of(config), token_types=config.get("type_vocab_size") != 0)

    def modules_of_stored(self, name: str) -> tuple[str, ...]:
        """As files of transformers 5 and of these models' authors have them, GTE's base model as ``new``."""
        names = [name]
        for pattern, modules in _STORED.items():
            if re.search(pattern, name):
                names = [re.sub(pattern, module, each) for module in modules for each in names]
        return tuple(names)


FAMILY = Encoder(
    "roformer",
    {"roformer": _ROFORMER},
    limits=(
        "Queries and keys are turned, values not: rotary_value is refused.",
        "Sines are computed: a checkpoint's table of them (encoder.embed_positions) is not read; nothing trains it.",
        "The methods prefix and mam are refused: each key is turned by its place, and a prefix has none.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
    ),
)
NOMIC = NomicBert(
    "nomic-bert",
    _NOMIC,
    limits=(
        "Transformers has them from version 5 on: training and export need it, a board does not.",
        "Rotary positions that are not scaled, of all of a head's numbers.",
        "The methods prefix and mam are refused: each key is turned by its place, and a prefix has none.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
        "Deltas neither come from other libraries nor go there: their classifier has a pooler, published models none.",
    ),
)

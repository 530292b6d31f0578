"""Nomic BERT (Nussbaum et al., 2024, arXiv:2402.01613) and GTE (Zhang et al., 2024, arXiv:2407.19669).

BERT with rotary positions and gated feed-forwards, in transformers from version 5 on; norms stand past the sums:

    y = LN(z + W2 (act(W_gate z) * W_up z))

Files keep query, key and value as one matrix, and GTE's up and gate: a copy by the names of transformers' modules is
made once.

Letters: T real tokens, d hidden.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from edgepeft.backbones._bert import ACTIVATION_NODES, SILU
from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Architecture, Attention, Role, Site
from edgepeft.backbones.bert import BertBuilder
from edgepeft.backbones.modernbert import mapping, refuse_scaling
from edgepeft.backbones.positions import Rotary
from edgepeft.backbones.roformer import RoFormer, RotaryBuilder
from edgepeft.common.errors import UsageError

__all__ = ["FAMILY", "NomicBert"]

_GTE = ModelLayout(
    prefix="gte.",
    layer="layers.{i}.",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_output="self_attn.o_proj",
    attention_dropout="post_attention_dropout",
    attention_norm="post_attention_layernorm",
    attention_residual=("", 0),
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    activation="mlp.act_fn",
    down="mlp.down_proj",
    ffn_dropout="post_mlp_dropout",
    ffn_residual=("mlp", 0),
    ffn_norm="post_mlp_layernorm",
    layer_end="post_mlp_layernorm",
    unbiased=("mlp.gate_proj", "mlp.up_proj"),
    positions=False,
    masked="",  # each key is turned by its place
    defaults={"pad_token_id": 1, "type_vocab_size": 1},
)
_LAYOUTS = {
    "nomic_bert": replace(
        _GTE, prefix="nomic_bert.", unbiased=("_proj",), defaults={"hidden_act": SILU, "pad_token_id": 0}
    ),
    "gte": _GTE,
}
_THETAS = {"nomic_bert": 1_000.0, "gte": 160_000.0}  # where a config is silent
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


class NomicBert(RoFormer):
    """Nomic BERT and GTE, of transformers 5."""

    name: ClassVar[str] = "nomic-bert"
    layouts: ClassVar[Mapping[str, ModelLayout]] = _LAYOUTS
    model_types: ClassVar[tuple[str, ...]] = tuple(_LAYOUTS)
    limits: ClassVar[tuple[str, ...]] = (
        "Transformers has them from version 5 on: training and export need it, a board does not.",
        "Rotary positions that are not scaled, of all of a head's numbers.",
        "The methods prefix and mam are refused: each key is turned by its place, and a prefix has none.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
        "Deltas neither come from other libraries nor go there: their classifier has a pooler, published models none.",
    )

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, without token types where the config has none."""
        layout = super().layout_of(config)
        return replace(layout, token_types=config.get("type_vocab_size") != 0)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """As RoFormer's."""
        found = super().architecture(config)
        width = found.hidden_size // found.n_heads
        if config.get("head_dim") not in (None, width):
            raise UsageError(f"the config's head_dim is {config['head_dim']!r}; supported: {width}, a head's share.")
        attention = (Attention(_theta(config), None),) * found.n_layers
        return replace(found, attention=attention, foreign_head="pooler.dense")

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer; what is gated has no one value before it."""
        return {} if site.role is Role.FFN_ACTIVATION else super().neighbours(site)

    def modules_of_stored(self, name: str) -> tuple[str, ...]:
        """As files of transformers 5 and of these models' authors have them, GTE's base model as ``new``."""
        names = [name]
        for pattern, modules in _STORED.items():
            if re.search(pattern, name):
                names = [re.sub(pattern, module, each) for module in modules for each in names]
        return tuple(names)

    @property
    def builder(self) -> type[BertBuilder]:
        """What emits its models."""
        return _Builder


FAMILY = NomicBert()


def _theta(config: Mapping[str, Any]) -> float:
    settings = mapping("rope_parameters", config.get("rope_parameters"))
    refuse_scaling("rope_parameters", settings)
    refuse_scaling("rope_scaling", mapping("rope_scaling", config.get("rope_scaling")))
    theta = settings.get("rope_theta", config.get("rope_theta", _THETAS[config["model_type"]]))
    wrong = isinstance(theta, bool) or not isinstance(theta, (int, float))
    if wrong or not math.isfinite(theta) or theta < 1:
        raise UsageError(f"the config's rope_theta must be a number from 1 on; found {theta!r}.")
    return float(theta)


class _Builder(RotaryBuilder):
    """RoFormer's, with halves turned and a gate."""

    def _rotary(self) -> Rotary:
        return Rotary(self.emit, self.packing, self.arch.attention[0].theta, self.arch.hidden_size)

    def _feed_forward(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        op, linear, layout = self.emit.op, self.emit.linear, self.layout
        gate = linear(layer + layout.gate, hidden, name + "ffn_gate")
        if self.arch.activation == SILU:
            opened = op("Mul", gate, op("Sigmoid", gate))
        else:
            operator, attributes = ACTIVATION_NODES[self.arch.activation]
            opened = op(operator, gate, **attributes)
        up = op("Mul", opened, linear(layer + layout.up, hidden, name + "ffn_gated"), output=name + "ffn_activation")
        return linear(layer + layout.down, up, name + "ffn_output")

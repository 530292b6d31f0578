"""ModernBERT (Warner et al., 2024, arXiv:2412.13663): pre-LN layers without biases, of a config of transformers 4 or 5.

Positions are rotary, feed-forwards gated, and most layers' attention sees a window around each token.  Query, key and
value are one product, the feed-forward's two first products another: the sites are parts of these.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgepeft.backbones.base import Architecture, Attention
from edgepeft.backbones.config import GLOBAL, LOCAL, checked, layer_types, require_known, require_switches, rope_of
from edgepeft.backbones.encoder import Encoder, ModelLayout
from edgepeft.backbones.pooling import Pooling

_LAYOUT = ModelLayout(
    prefix="model.",
    words="embeddings.tok_embeddings",
    embeddings_norm="embeddings.norm",
    layer="layers.{i}.",
    query="attn.Wqkv",
    key="attn.Wqkv",
    value="attn.Wqkv",
    attention_output="attn.Wo",
    attention_norm="attn_norm",
    gate="mlp.Wi",
    up="mlp.Wi",
    down="mlp.Wo",
    ffn_norm="mlp_norm",
    positions=False,
    token_types=False,
    rotary="halves",
    last_norm="final_norm",
    first_norm=False,  # it reads what is past the embeddings' norm
    masked="",  # keys are turned by their places and seen in windows
    foreign_head="head.dense and head.norm",
    defaults={"layer_norm_eps": 1e-5, "pad_token_id": 50283, "max_length": 8192},
    keys={"activation": "hidden_activation", "layer_norm_eps": "norm_eps"},
    fixed={},
)
# Which modules have biases where a config says so; no published ModernBERT has some.
_BIASES = {"attention_bias": ("attn.Wqkv", "attn.Wo"), "mlp_bias": ("mlp.Wi", "mlp.Wo"), "norm_bias": ("norm",)}
_POOLINGS = {"cls": Pooling.FIRST, "mean": Pooling.MEAN}


class ModernBert(Encoder):
    """ModernBERT, of transformers 4 and 5."""

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, with what has no bias."""
        require_switches(config, *_BIASES)
        unbiased = (module for key, modules in _BIASES.items() if not config.get(key, False) for module in modules)
        return replace(super().layout_of(config), unbiased=tuple(unbiased))

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """As every encoder's; of its tensors matrices come first, then norms' weights and at last biases."""
        found, pooling = super().architecture(config), config.get("classifier_pooling", "cls")
        require_known("classifier_pooling", pooling, _POOLINGS)

        def order(name: str) -> tuple[bool, bool]:  # intrinsic-said numbers tensors, so it stays for ever
            return name.endswith(".bias"), name.rpartition(".")[0] in found.norms

        tensors = {name: found.tensors[name] for name in sorted(found.tensors, key=order)}
        return replace(found, pooling=_POOLINGS[pooling], tensors=tensors)

    def attention_of(self, config: Mapping[str, Any], n_layers: int) -> tuple[Attention, ...]:
        """Global or local."""
        width = checked("local_attention", config.get("local_attention", 128))  # of both sides
        theta = rope_of(config, "global_rope_theta", 160_000.0, GLOBAL)["rope_theta"]
        local = rope_of(config, "local_rope_theta", 10_000.0, LOCAL, instead=theta)["rope_theta"]
        known = {GLOBAL: Attention(theta, None), LOCAL: Attention(local, width // 2)}
        key = "global_attn_every_n_layers"  # in transformers 4
        every = 3 if config.get("layer_types") is not None else checked(key, config.get(key, 3))
        kinds = layer_types(config, [LOCAL if i % every else GLOBAL for i in range(n_layers)])
        return tuple(known[kind] for kind in kinds)


FAMILY = ModernBert(
    "modernbert",
    {"modernbert": _LAYOUT},
    limits=(
        "The methods prefix and mam are refused: keys are turned by their places and seen in windows.",
        "Rotary positions that are not scaled, of all of a head's numbers.",
        "Deltas neither come from other libraries nor go there: their classifier's head is none of edgepeft's.",
    ),
)

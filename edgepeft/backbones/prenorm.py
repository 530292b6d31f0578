"""BERT's relatives whose norms stand before sub-layers, and past the last layer (Xiong et al., 2020, arXiv:2002.04745).

    z = x + attention(norm(x)),  y = z + feed_forward(norm(z))

Their tables and parts are BERT's: see ``bert.py``.

Letters: B batch, S padded length, T real tokens, d hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from edgepeft.backbones._bert import neighbours
from edgepeft.backbones._layouts import LAYOUTS, ModelLayout
from edgepeft.backbones.base import Role, Site
from edgepeft.backbones.bert import Bert, BertBuilder

__all__ = ["FAMILY", "PreNorm"]

_LAYOUTS = {
    "xlm-roberta-xl": replace(
        LAYOUTS["roberta"],
        attention_norm="attention.self_attn_layer_norm",
        ffn_dropout="output.dense",  # no dropout follows
        ffn_norm="LayerNorm",
        embeddings_norm=False,
        last_norm="encoder.LayerNorm",
        defaults={"pad_token_id": 1, "layer_norm_eps": 1e-5, "type_vocab_size": 1},
    ),
    "roberta-prelayernorm": replace(
        LAYOUTS["roberta"],
        prefix="roberta_prelayernorm.",
        attention_norm="attention.LayerNorm",
        ffn_norm="intermediate.LayerNorm",
        last_norm="LayerNorm",
    ),
    "megatron-bert": replace(
        LAYOUTS["bert"], attention_norm="attention.ln", ffn_norm="ln", embeddings_norm=False, last_norm="encoder.ln"
    ),
}


class PreNorm(Bert):
    """XLM-R-XL, RoBERTa-PreLayerNorm and Megatron-BERT."""

    name: ClassVar[str] = "bert-pre-norm"
    layouts: ClassVar[Mapping[str, ModelLayout]] = _LAYOUTS
    model_types: ClassVar[tuple[str, ...]] = tuple(_LAYOUTS)
    limits: ClassVar[tuple[str, ...]] = (
        "Positions are learnt and absolute: another position_embedding_type is refused.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
    )

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        return neighbours(site, pre_norm=True)

    @property
    def builder(self) -> type[BertBuilder]:
        """What emits its models."""
        return _Builder


FAMILY = PreNorm()


class _Builder(BertBuilder):
    """BERT's, with its norms elsewhere."""

    def _layer(self, i: int, hidden: str) -> str:
        layout, name, layer, op = self.layout, f"layer.{i}.", self.arch.layer_path(i), self.emit.op
        context = self._attention(
            layer, name, self._norm(layer + layout.attention_norm, hidden, name + "attention_norm")
        )
        attended = self.emit.linear(layer + layout.attention_output, context, name + "attention_output")
        total = op("Add", attended, hidden, output=name + "attention_output.sum")
        normed = self._norm(layer + layout.ffn_norm, total, name + "ffn_norm")
        return op("Add", self._feed_forward(layer, name, normed), total, output=name + "layer_output")

    def _last(self, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        return self._norm(self.layout.last_norm, hidden, Role.STACK_OUTPUT.value)

"""ModernBERT (Warner et al., 2024, arXiv:2412.13663): pre-LN layers without biases; shapes are in ``_modernbert.py``.

Positions are rotary, feed-forwards gated, and most layers' attention sees a window around each token.  Query, key and
value are one product, the feed-forward's two first products another: the sites are parts of these.

Letters: B batch, S padded length, T real tokens, d hidden, f intermediate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import onnx

from edgepeft.backbones._bert import ACTIVATION_NODES
from edgepeft.backbones._modernbert import (
    attention_of,
    neighbours,
    norms_of,
    pooling_of,
    sites_of,
    sizes_of,
    tensors_of,
)
from edgepeft.backbones.base import Architecture, Attention, Family, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing
from edgepeft.backbones.rotary import Rotary
from edgepeft.backbones.windows import windows

__all__ = ["FAMILY", "ModernBert"]


class ModernBert(Family):
    """ModernBERT, of transformers 4 and 5."""

    name: ClassVar[str] = "modernbert"
    model_types: ClassVar[tuple[str, ...]] = ("modernbert",)
    limits: ClassVar[tuple[str, ...]] = (
        "Linear layers and norms without biases: attention_bias, mlp_bias and norm_bias are refused.",
        "The methods prefix and mam are refused: keys are turned by their places and seen in windows.",
        "Rotary positions that are not scaled, of all of a head's numbers.",
        "Deltas neither come from other libraries nor go there: their classifier's head is none of edgepeft's.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config.

        Raises:
            UsageError: a key is missing or of the wrong kind, or the model uses what is not supported.
        """
        sizes = sizes_of(config)
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=sizes.hidden_size,
            n_layers=sizes.num_hidden_layers,
            n_heads=sizes.num_attention_heads,
            intermediate_size=sizes.intermediate_size,
            vocab_size=sizes.vocab_size,
            max_length=sizes.max_position_embeddings,
            pad_token_id=sizes.pad_token_id,
            layer_norm_eps=sizes.norm_eps,
            activation=sizes.hidden_activation,
            sites=sites_of(sizes),
            tensors=tensors_of(sizes),
            pooler={},
            norms=tuple(norms_of(sizes)),
            inputs=("input_ids", "attention_mask"),
            head="linear",
            words="embeddings.tok_embeddings.weight",
            pooling=pooling_of(config),
            attention=attention_of(config, sizes.num_hidden_layers),
            foreign_head="head.dense and head.norm",
        )

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        return neighbours(site)

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """What transformers' classes put before the encoder."""
        return "model."

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d].

        Raises:
            BundleError: the checkpoint has a tensor in another shape or dtype.
        """
        return _Builder(architecture, checkpoint).model()


FAMILY = ModernBert()


class _Builder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        self.arch, self.emit = architecture, Emitter(checkpoint, architecture.tensors)
        self.packing = Packing(self.emit, architecture.n_heads)
        width = architecture.hidden_size
        thetas = dict.fromkeys(layer.theta for layer in architecture.attention)
        self.rotary = {theta: Rotary(self.emit, self.packing, theta, width) for theta in thetas}
        reaches = dict.fromkeys(layer.reach for layer in architecture.attention)
        self.within = {reach: windows(self.emit, self.packing, reach) for reach in reaches if reach is not None}

    def model(self) -> onnx.ModelProto:
        op, table = self.emit.op, self.emit.weight(self.arch.words)
        hidden = op("Gather", table, self.packing.packed("input_ids"), output="word_embeddings")
        hidden = self._norm("embeddings.norm", hidden, "embeddings")
        for i, attention in enumerate(self.arch.attention):
            hidden = self._layer(i, hidden, attention)
        outputs = self.packing.outputs(self._norm("final_norm", hidden, "output"), self.arch.hidden_size)
        return self.emit.model(self.arch.model_type, self.arch.inputs, outputs)

    def _norm(self, module: str, value: str, output: str) -> str:
        return self.emit.norm(module, value, self.arch.layer_norm_eps, output)

    def _layer(self, i: int, hidden: str, attention: Attention) -> str:
        layer, name, op, linear = f"layers.{i}.", f"layer.{i}.", self.emit.op, self.emit.linear
        normed = self._norm(layer + "attn_norm", hidden, name + "attention_norm") if i else hidden
        context = self._attention(layer, name, normed, attention)
        attended = linear(layer + "attn.Wo", context, name + "attention_output")
        hidden = op("Add", attended, hidden, output=name + "attention_output.sum")
        normed = self._norm(layer + "mlp_norm", hidden, name + "ffn_norm")
        gate, gated = self._parts(layer + "mlp.Wi", normed, self.arch.intermediate_size, name, "ffn_gate", "ffn_gated")
        activation, attributes = ACTIVATION_NODES[self.arch.activation]
        up = op("Mul", op(activation, gate, **attributes), gated, output=name + "ffn_activation")
        return op("Add", linear(layer + "mlp.Wo", up, name + "ffn_output"), hidden, output=name + "layer_output")

    def _attention(self, layer: str, name: str, hidden: str, attention: Attention) -> str:
        """(T, d) -> (T, d)."""
        d, rotary = self.arch.hidden_size, self.rotary[attention.theta]
        query, key, value = self._parts(layer + "attn.Wqkv", hidden, d, name, "query", "key", "value")
        within = None if attention.reach is None else self.within[attention.reach]
        return self.packing.attend(rotary.query(query), rotary.key(key), value, d, name + "context", within=within)

    def _parts(self, module: str, value: str, width: int, name: str, *sites: str) -> list[str]:
        """A product of several values side by side -> each of them, (T, width)."""
        op, ints, whole = self.emit.op, self.emit.ints, self.emit.linear(module, value)
        ends = [(ints(i * width), ints((i + 1) * width)) for i in range(len(sites))]
        return [op("Slice", whole, *end, ints(1), output=name + site) for end, site in zip(ends, sites, strict=True)]

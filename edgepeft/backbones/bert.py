"""BERT and its relatives: post-LN encoders (Devlin et al., 2019); their shapes are in ``_bert.py``.

MPNet (Song et al., 2020, arXiv:2004.09297) also adds to attention what all layers share for the distance between two
tokens.  The graph runs on packed tokens: see ``packing.py``.

Letters: B batch, S padded length, T real tokens, d hidden, h heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones._bert import (
    ACTIVATION_NODES,
    modules_of,
    neighbours,
    sites_of,
    sizes_of,
    tensors_of,
)
from edgepeft.backbones._layouts import FURTHEST, LAYOUTS, ModelLayout
from edgepeft.backbones.base import Architecture, Family, Role, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing
from edgepeft.backbones.positions import distance_bias

__all__ = ["FAMILY", "Bert", "BertBuilder"]


class Bert(Family):
    """BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, data2vec, ERNIE, RemBERT, ALBERT, ELECTRA, DistilBERT and MPNet."""

    name: ClassVar[str] = "bert"
    model_types: ClassVar[tuple[str, ...]] = tuple(LAYOUTS)
    layouts: ClassVar[Mapping[str, ModelLayout]] = LAYOUTS
    limits: ClassVar[tuple[str, ...]] = (
        "Positions are learnt and absolute, MPNet's distances too: another position_embedding_type is refused.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
        "ALBERT: layers of a group are one set of tensors, and trained as one; inner_group_num above 1 is refused.",
        "ERNIE with use_task_id: texts are of its first task type, as in transformers where none is given.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        layout = self.layout_of(config)
        sizes = sizes_of(config, layout)
        d, offset = sizes.hidden_size, sizes.pad_token_id + 1 if layout.counted_positions else 0
        token_types = ("token_type_ids",) if layout.token_types and sizes.type_vocab_size > 1 else ()
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=d,
            n_layers=sizes.num_hidden_layers,
            n_heads=sizes.num_attention_heads,
            intermediate_size=sizes.intermediate_size,
            vocab_size=sizes.vocab_size,
            max_length=sizes.max_position_embeddings - offset,
            pad_token_id=sizes.pad_token_id,
            layer_norm_eps=sizes.layer_norm_eps,
            activation=sizes.hidden_act,
            sites=sites_of(layout, sizes),
            tensors=tensors_of(layout, sizes),
            pooler={f"{layout.pooler}.weight": (d, d), f"{layout.pooler}.bias": (d,)} if layout.pooler else {},
            norms=tuple(module for module, shape in modules_of(layout, sizes) if len(shape) == 1),
            inputs=("input_ids", "attention_mask", *token_types),
            head=layout.head,
            reference=layout.reference,
        )

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table."""
        return self.layouts[config["model_type"]]

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        return neighbours(site)

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """``bert.``, and so on."""
        return self.layouts[architecture.model_type].prefix

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d]."""
        return self.builder(architecture, self.layouts[architecture.model_type], checkpoint).model()

    @property
    def builder(self) -> type[BertBuilder]:
        """What emits its models."""
        return BertBuilder


FAMILY = Bert()


class BertBuilder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, architecture: Architecture, layout: ModelLayout, checkpoint: Checkpoint) -> None:
        self.arch, self.layout = architecture, layout
        self.emit = Emitter(checkpoint, architecture.tensors)
        self.packing = Packing(self.emit, architecture.n_heads)

    def model(self) -> onnx.ModelProto:
        """The finished graph."""
        hidden, self.bias = self._embed(), self._distance_bias()
        for i in range(self.arch.n_layers):
            hidden = self._layer(i, hidden)
        outputs = self.packing.outputs(self._last(hidden), self.arch.hidden_size)
        return self.emit.model(self.arch.model_type, self.arch.inputs, outputs)

    def _last(self, hidden: str) -> str:
        """What is pooled, of the last layer's output."""
        return hidden

    def _norm(self, module: str, value: str, output: str) -> str:
        return self.emit.norm(module, value, self.arch.layer_norm_eps, output)

    def _positions(self) -> str:
        op = self.emit.op
        if not self.layout.counted_positions:  # the column itself says where attention finds a token, too
            return op("Identity", self.packing.column, output=Role.POSITION_IDS.value)
        pad = self.emit.constant("pad_token_id", self.arch.pad_token_id, np.int64)
        counted = op("Cast", op("Not", op("Equal", "input_ids", pad)), to=TensorProto.INT64)  # (B, S)
        positions = op("Add", op("Mul", op("CumSum", counted, self.packing.one), counted), pad)
        return self.packing.packed(positions, output=Role.POSITION_IDS.value)

    def _embed(self) -> str:
        op = self.emit.op
        table = self.emit.weight("embeddings.word_embeddings.weight")
        hidden = op("Gather", table, self.packing.packed("input_ids"), output="word_embeddings")
        if "embeddings.token_type_embeddings.weight" in self.arch.tensors:
            table = self.emit.weight("embeddings.token_type_embeddings.weight")
            types = self.packing.packed("token_type_ids") if "token_type_ids" in self.arch.inputs else self.packing.zero
            hidden = op("Add", hidden, op("Gather", table, types))
        if self.layout.positions:
            table = self.emit.weight("embeddings.position_embeddings.weight")
            hidden = op("Add", hidden, op("Gather", table, self._positions(), output="position_embeddings"))
        if "embeddings.task_type_embeddings.weight" in self.arch.tensors:
            table = self.emit.weight("embeddings.task_type_embeddings.weight")
            hidden = op("Add", hidden, op("Gather", table, self.packing.zero))
        projects = f"{self.layout.projection}.weight" in self.arch.tensors
        output = "embeddings_norm" if projects else "embeddings"
        if self.layout.embeddings_norm:
            hidden = self._norm("embeddings.LayerNorm", hidden, output)
        else:
            hidden = op("Identity", hidden, output=output)
        return self.emit.linear(self.layout.projection, hidden, "embeddings") if projects else hidden

    def _distance_bias(self) -> str:
        """(B, h, S, S), what leaves padding out included; nothing where tokens are told apart by position alone."""
        if not (table := self.layout.distances):
            return ""
        op, packing = self.emit.op, self.packing
        name = Role.DISTANCE_BIAS.value
        bias = distance_bias(self.emit, table, packing.distances(), FURTHEST, both_ways=True, output=name)
        return op("Add", bias, packing.mask_bias)

    def _layer(self, i: int, hidden: str) -> str:
        layout, name, layer, op = self.layout, f"layer.{i}.", self.arch.layer_path(i), self.emit.op
        context = self._attention(layer, name, hidden)
        attended = self.emit.linear(layer + layout.attention_output, context, name + "attention_output")
        attended = self._norm(layer + layout.attention_norm, op("Add", attended, hidden), name + "attention_norm")
        total = op("Add", self._feed_forward(layer, name, attended), attended)
        return self._norm(layer + layout.ffn_norm, total, name + "layer_output")

    def _feed_forward(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        linear, (activation, attributes) = self.emit.linear, ACTIVATION_NODES[self.arch.activation]
        up = linear(layer + self.layout.up, hidden, name + "ffn_up")
        up = self.emit.op(activation, up, output=name + "ffn_activation", **attributes)
        return linear(layer + self.layout.down, up, name + "ffn_output")

    def _attention(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, linear, d = self.layout, self.emit.linear, self.arch.hidden_size
        scale = self.emit.constant("query_scale", (d // self.arch.n_heads) ** -0.5, np.float32)
        query = linear(layer + layout.query, hidden, name + "query")
        key = linear(layer + layout.key, hidden, name + "key")
        value = linear(layer + layout.value, hidden, name + "value")
        query = self.emit.op("Mul", query, scale)
        return self.packing.attend(query, key, value, d, name + "context", bias=self.bias, heads=name)

"""Encoders of BERT's kind: an architecture from a row of ``_layouts`` and a config, and one builder of their graphs.

Post-LN or pre-LN; positions are learnt, rotary or a subclass's; feed-forwards may be gated.  The graph runs on packed
tokens: see ``packing.py``.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, f intermediate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones import _layouts as shapes
from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Architecture, Attention, Family, Role
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import rope_theta
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing
from edgepeft.backbones.positions import Rotary, distance_bias, windows
from edgepeft.common.errors import BundleError

LEARNT = "embeddings.position_embeddings.weight"


class EncoderBuilder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, architecture: Architecture, layout: ModelLayout, checkpoint: Checkpoint) -> None:
        self.arch, self.layout = architecture, layout
        self.emit = Emitter(checkpoint, architecture)
        self.packing, pairs = Packing(self.emit), layout.rotary == "neighbours"
        thetas = dict.fromkeys(layer.theta for layer in architecture.attention)
        self.rotary = {theta: Rotary(self.emit, self.packing, theta, neighbours=pairs) for theta in thetas}
        reaches = dict.fromkeys(layer.reach for layer in architecture.attention if layer.reach is not None)
        self.within = {reach: windows(self.emit, self.packing, reach) for reach in reaches}

    def model(self) -> onnx.ModelProto:
        """The finished graph."""
        hidden, self.bias = self._embed(), ""
        if table := self.layout.distances:  # otherwise tokens are told apart by position alone
            name, apart = Role.DISTANCE_BIAS.value, self.packing.distances()
            bias = distance_bias(self.emit, table, apart, shapes.FURTHEST, both_ways=True, output=name)
            self.bias = self.emit.op("Add", bias, self.packing.mask_bias)  # (B, h, S, S)
        for i in range(self.arch.n_layers):
            hidden = self._layer(i, hidden)
        if self.layout.last_norm:
            hidden = self.emit.norm(self.layout.last_norm, hidden, Role.STACK_OUTPUT.value)
        outputs = self.packing.outputs(hidden, self.arch.hidden_size)
        return self.emit.model(self.emit.rows(), outputs)

    def _embed(self) -> str:
        op = self.emit.op
        table = self.emit.weight(self.arch.words)
        hidden = op("Gather", table, self.packing.packed("input_ids"), output="word_embeddings")
        if "embeddings.token_type_embeddings.weight" in self.arch.tensors:
            table = self.emit.weight("embeddings.token_type_embeddings.weight")
            types = self.packing.packed("token_type_ids") if "token_type_ids" in self.arch.inputs else self.packing.zero
            hidden = op("Add", hidden, op("Gather", table, types))
        if LEARNT in self.arch.tensors:
            table, place = self.emit.weight(LEARNT), Role.POSITION_IDS.value
            if self.layout.counted_positions:
                pad = self.emit.constant("pad_token_id", self.arch.pad_token_id, np.int64)
                counted = op("Cast", op("Not", op("Equal", "input_ids", pad)), to=TensorProto.INT64)  # (B, S)
                positions = op("Add", op("Mul", op("CumSum", counted, self.packing.one), counted), pad)
                self.packing.packed(positions, output=place)
            else:  # the column itself says where attention finds a token, too
                op("Identity", self.packing.column, output=place)
            hidden = op("Add", hidden, op("Gather", table, place, output="position_embeddings"))
        if "embeddings.task_type_embeddings.weight" in self.arch.tensors:
            table = self.emit.weight("embeddings.task_type_embeddings.weight")
            hidden = op("Add", hidden, op("Gather", table, self.packing.zero))
        projects = f"{self.layout.projection}.weight" in self.arch.tensors
        output = "embeddings_norm" if projects else "embeddings"
        if self.layout.embeddings_norm:
            hidden = self.emit.norm(self.layout.embeddings_norm, hidden, output)
        else:
            hidden = op("Identity", hidden, output=output)
        return self.emit.linear(self.layout.projection, hidden, "embeddings") if projects else hidden

    def _layer(self, i: int, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, name, layer, op = self.layout, f"layer.{i}.", self.arch.layer_path(i), self.emit.op
        reads, before = hidden, bool(layout.last_norm)
        if before and (i or layout.first_norm):
            reads = self.emit.norm(layer + layout.attention_norm, hidden, name + "attention_norm")
        context = self._attention(i, layer, name, reads)
        attended = self.emit.linear(layer + layout.attention_output, context, name + "attention_output")
        if before:
            total = op("Add", attended, hidden, output=name + "attention_output.sum")
            reads = self.emit.norm(layer + layout.ffn_norm, total, name + "ffn_norm")
            return op("Add", self._feed_forward(layer, name, reads), total, output=name + "layer_output")
        attended = self.emit.norm(layer + layout.attention_norm, op("Add", attended, hidden), name + "attention_norm")
        total = op("Add", self._feed_forward(layer, name, attended), attended)
        return self.emit.norm(layer + layout.ffn_norm, total, name + "layer_output")

    def _attention(self, i: int, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        d, within = self.arch.hidden_size, None
        scale = self.emit.constant("query_scale", (d // self.arch.n_heads) ** -0.5, np.float32)
        modules = (self.layout.query, self.layout.key, self.layout.value)
        sites = [name + role for role in (Role.QUERY, Role.KEY, Role.VALUE)]
        query, key, value = self._products(layer, modules, hidden, d, sites)
        if self.rotary:
            own = self.arch.attention[i]
            rotary = self.rotary[own.theta]
            within = None if own.reach is None else self.within[own.reach]
            query, key = rotary.turned(query, *rotary.query), rotary.turned(key, *rotary.key)
        else:
            query = self.emit.op("Mul", query, scale)
        heads = name if self.layout.masked else ""
        return self.packing.attend(query, key, value, d, name + "context", bias=self.bias, within=within, heads=heads)

    def _feed_forward(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, emit, down = self.layout, self.emit, layer + self.layout.down
        if layout.gate != layout.up:
            gate = layout.gate and layer + layout.gate
            return emit.feed_forward(hidden, name, up=layer + layout.up, down=down, gate=gate)
        sites, modules = [name + role for role in (Role.FFN_GATE, Role.FFN_GATED)], (layout.gate, layout.up)
        gate, up = self._products(layer, modules, hidden, self.arch.intermediate_size, sites)
        up = emit.op("Mul", emit.activated(gate), up, output=name + "ffn_activation")
        return emit.linear(down, up, name + "ffn_output")

    def _products(
        self, layer: str, modules: Sequence[str], value: str, width: int, outputs: Sequence[str]
    ) -> Iterator[str]:
        """(T, d) -> (T, width) by each module, or as parts of what one gives, side by side."""
        op, ints, linear = self.emit.op, self.emit.ints, self.emit.linear
        if len(set(modules)) > 1:
            yield from (linear(layer + module, value, output) for module, output in zip(modules, outputs, strict=True))
            return
        whole = linear(layer + modules[0], value)
        ends = [(ints(i * width), ints((i + 1) * width)) for i in range(len(outputs))]
        yield from [op("Slice", whole, *end, ints(1), output=output) for end, output in zip(ends, outputs, strict=True)]


class Encoder(Family):
    """A family that is a table, whose rows ``EncoderBuilder`` can emit."""

    builder: ClassVar[type[EncoderBuilder]] = EncoderBuilder

    def __init__(self, name: str, layouts: Mapping[str, ModelLayout], limits: tuple[str, ...]) -> None:
        self.name, self.layouts, self.limits, self.model_types = name, layouts, limits, tuple(layouts)

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, without a table of task types where the config has none."""
        layout = self.layouts[config["model_type"]]
        return replace(layout, task_types=layout.task_types and bool(config.get("use_task_id")))

    def attention_of(self, config: Mapping[str, Any], n_layers: int) -> tuple[Attention, ...]:
        """Each layer's, where positions turn queries and keys: the same everywhere."""
        layout = self.layouts[config["model_type"]]
        return (Attention(rope_theta(config, "rope_theta", layout.theta), None),) * n_layers if layout.rotary else ()

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        layout = self.layout_of(config)
        sizes = shapes.sizes_of(config, layout)
        d, offset = sizes.hidden_size, sizes.pad_token_id + 1 if layout.counted_positions else 0
        token_types = ("token_type_ids",) if layout.token_types and sizes.type_vocab_size > 1 else ()
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            **{**sizes.common, "max_length": sizes.max_length - offset},
            sites=tuple(shapes.sites_of(layout, sizes)),
            tensors=shapes.tensors_of(layout, sizes),
            pooler={f"{layout.pooler}.weight": (d, d), f"{layout.pooler}.bias": (d,)} if layout.pooler else {},
            norms=tuple(module for module, shape in shapes.modules_of(layout, sizes) if len(shape) == 1),
            inputs=("input_ids", "attention_mask", *token_types),
            head=layout.head,
            prefix=layout.prefix,
            words=f"{layout.words}.weight",
            attention=self.attention_of(config, sizes.n_layers),
            foreign_head=layout.foreign_head,
            reference=layout.reference,
        )

    def open_checkpoint(self, architecture: Architecture, weights: Path) -> Checkpoint:
        """As every family's; one with learnt positions may have all the tensors that a rotary model asks for."""
        checkpoint = super().open_checkpoint(architecture, weights)
        if architecture.attention and checkpoint.has(LEARNT):
            raise BundleError(
                f"{weights} has {LEARNT}, positions that were learnt, and the config's model_type is "
                f"{architecture.model_type!r}, which has none; weights and config do not belong together."
            )
        return checkpoint

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d]."""
        return self.builder(architecture, self.layouts[architecture.model_type], checkpoint).model()

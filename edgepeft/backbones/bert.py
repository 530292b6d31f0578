"""BERT and its relatives: post-LN encoders (Devlin et al., 2019), one table per naming of the modules.

BERT, MiniLM, RoBERTa, XLM-R and ELECTRA name their modules alike; DistilBERT does not.  The graph runs on
packed tokens: see ``packing.py``.

Letters: B batch, S padded length, T real tokens, d hidden, f intermediate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones.base import Architecture, Family, Role, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import HELPERS, Packing
from edgepeft.errors import UsageError

__all__ = ["FAMILY", "LAYOUTS", "Bert"]


@dataclass(frozen=True)
class ModelLayout:
    """Where a model type keeps its parts: module paths, config keys, and three facts of its embeddings."""

    prefix: str  # of the base model in checkpoints of whole models
    layer: str = "encoder.layer.{i}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_dropout: str = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    attention_residual: tuple[str, int] = ("attention.output", 1)
    up: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    ffn_dropout: str = "output.dropout"
    ffn_residual: tuple[str, int] = ("output", 1)
    ffn_norm: str = "output.LayerNorm"
    layer_end: str = "output"
    token_types: bool = True
    counted_positions: bool = False  # from the count of ids != pad, not from the column
    pooler: bool = False
    head: str = "linear"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the config's


# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}
_ROBERTA = ModelLayout(prefix="roberta.", counted_positions=True, head="roberta", defaults={"pad_token_id": 1})
LAYOUTS = {
    "bert": ModelLayout(prefix="bert.", pooler=True, head="bert-pooler"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": ModelLayout(prefix="electra.", head="electra", defaults={"embedding_size": 128}),
    "distilbert": ModelLayout(
        prefix="distilbert.",
        layer="transformer.layer.{i}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_dropout="attention.out_lin",  # no dropout follows
        attention_norm="sa_layer_norm",
        attention_residual=("", 0),
        up="ffn.lin1",
        activation="ffn.activation",
        down="ffn.lin2",
        ffn_dropout="ffn.dropout",
        ffn_residual=("ffn", 0),
        ffn_norm="output_layer_norm",
        layer_end="output_layer_norm",
        token_types=False,
        head="distilbert",
        keys={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
    ),
}

# Activation in the config -> (ONNX operator, attributes).
ACTIVATION_NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}


@dataclass(frozen=True)
class _Sizes:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    pad_token_id: int
    embedding_size: int
    hidden_act: str
    layer_norm_eps: float


class Bert(Family):
    """BERT, MiniLM, RoBERTa, XLM-R, ELECTRA and DistilBERT."""

    name: ClassVar[str] = "bert"
    model_types: ClassVar[tuple[str, ...]] = tuple(LAYOUTS)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config.

        Raises:
            UsageError: a key is missing or of the wrong kind, or the model uses what is not supported.
        """
        layout, sizes = LAYOUTS[config["model_type"]], _sizes(config)
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
            sites=_sites(layout, sizes),
            tensors=_tensors(layout, sizes),
            pooler={"pooler.dense.weight": (d, d), "pooler.dense.bias": (d,)} if layout.pooler else {},
            norms=tuple(module for module, shape in _modules(layout, sizes) if len(shape) == 1),
            inputs=("input_ids", "attention_mask", *token_types),
            head=layout.head,
        )

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """Where each site's value, input and residual, and the helpers, stand in the graph."""
        values = {helper.value: value for helper, value in HELPERS.items()}
        for site in architecture.sites:
            values[site.name] = site.name
            values |= {f"{site.name}.{suffix}": value for suffix, value in _neighbours(site).items()}
        return values

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """``bert.``, and so on."""
        return LAYOUTS[architecture.model_type].prefix

    def open_checkpoint(self, architecture: Architecture, weights: Path) -> Checkpoint:
        """Index the weights, whether they are the base model's or a whole model's.

        Raises:
            BundleError: not safetensors, truncated, or of another model.
        """
        prefixes = ("", self.checkpoint_prefix(architecture))
        return Checkpoint.open(weights).with_prefix_for(architecture.tensors, prefixes)

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d].

        Raises:
            BundleError: the checkpoint has a tensor in another shape or dtype.
        """
        return _Builder(architecture, checkpoint).model()


FAMILY = Bert()


class _Builder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        self.arch, self.layout = architecture, LAYOUTS[architecture.model_type]
        self.emit = Emitter(checkpoint, architecture.tensors)
        self.packing = Packing(self.emit, architecture.n_heads)

    def model(self) -> onnx.ModelProto:
        hidden = self._embed()
        for i in range(self.arch.n_layers):
            hidden = self._layer(i, hidden)
        outputs = self.packing.outputs(hidden, self.arch.hidden_size)
        return self.emit.model(self.arch.model_type, self.arch.inputs, outputs)

    def _positions(self) -> str:
        if not self.layout.counted_positions:
            return self.packing.column
        op = self.emit.op
        pad = self.emit.constant("pad_token_id", self.arch.pad_token_id, np.int64)
        counted = op("Cast", op("Not", op("Equal", "input_ids", pad)), to=TensorProto.INT64)  # (B, S)
        positions = op("Add", op("Mul", op("CumSum", counted, self.packing.one), counted), pad)
        return self.packing.packed(positions)

    def _embed(self) -> str:
        op = self.emit.op
        table = self.emit.weight("embeddings.word_embeddings.weight")
        hidden = op("Gather", table, self.packing.packed("input_ids"), output="word_embeddings")
        if self.layout.token_types:
            table = self.emit.weight("embeddings.token_type_embeddings.weight")
            types = self.packing.packed("token_type_ids") if "token_type_ids" in self.arch.inputs else self.packing.zero
            hidden = op("Add", hidden, op("Gather", table, types))
        table = self.emit.weight("embeddings.position_embeddings.weight")
        hidden = op("Add", hidden, op("Gather", table, self._positions(), output="position_embeddings"))
        if "embeddings_project.weight" not in self.arch.tensors:
            return self.emit.norm("embeddings.LayerNorm", hidden, self.arch.layer_norm_eps, "embeddings")
        hidden = self.emit.norm("embeddings.LayerNorm", hidden, self.arch.layer_norm_eps, "embeddings_norm")
        return self.emit.linear("embeddings_project", hidden, "embeddings")

    def _layer(self, i: int, hidden: str) -> str:
        layout, name, op, linear = self.layout, f"layer.{i}.", self.emit.op, self.emit.linear
        layer, epsilon = layout.layer.format(i=i), self.arch.layer_norm_eps
        context = self._attention(layer, name, hidden)
        attended = linear(layer + layout.attention_output, context, name + "attention_output")
        total = op("Add", attended, hidden)
        attended = self.emit.norm(layer + layout.attention_norm, total, epsilon, name + "attention_norm")
        activation, attributes = ACTIVATION_NODES[self.arch.activation]
        up = linear(layer + layout.up, attended, name + "ffn_up")
        up = op(activation, up, output=name + "ffn_activation", **attributes)
        down = linear(layer + layout.down, up, name + "ffn_output")
        return self.emit.norm(layer + layout.ffn_norm, op("Add", down, attended), epsilon, name + "layer_output")

    def _attention(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, linear, d = self.layout, self.emit.linear, self.arch.hidden_size
        scale = self.emit.constant("query_scale", (d // self.arch.n_heads) ** -0.5, np.float32)
        query = linear(layer + layout.query, hidden, name + "query")
        key = linear(layer + layout.key, hidden, name + "key")
        value = linear(layer + layout.value, hidden, name + "value")
        return self.packing.attend(self.emit.op("Mul", query, scale), key, value, d, name + "context")


def _sizes(config: Mapping[str, Any]) -> _Sizes:
    layout = LAYOUTS[config["model_type"]]
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UsageError("relative position embeddings are not supported; use a checkpoint with absolute ones.")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UsageError("the config describes a decoder; edgepeft runs encoders.")
    defaults = {**_DEFAULTS, **layout.defaults}
    values: dict[str, Any] = {}
    for name, kind in _Sizes.__annotations__.items():
        key = layout.keys.get(name, name)
        value = config.get(key, defaults.get(name))
        if name == "embedding_size" and config["model_type"] != "electra":
            value = values["hidden_size"]  # only ELECTRA reads that key
        values[name] = checked(key, value, kind)
    if values["hidden_size"] % values["num_attention_heads"]:
        raise UsageError("the config's hidden size is not a multiple of its number of heads.")
    if values["num_hidden_layers"] > MOST_LAYERS:
        raise UsageError(f"the config asks for {values['num_hidden_layers']} layers; at most {MOST_LAYERS} are built.")
    offset = values["pad_token_id"] + 1 if layout.counted_positions else 0
    if values["max_position_embeddings"] <= offset or values["pad_token_id"] >= values["vocab_size"]:
        raise UsageError("the config's pad_token_id lies beyond its vocabulary or its position embeddings.")
    if values["hidden_act"] not in ACTIVATION_NODES:
        known = ", ".join(ACTIVATION_NODES)
        raise UsageError(f"the config's activation is {values['hidden_act']!r}; supported: {known}.")
    return _Sizes(**values)


def _modules(layout: ModelLayout, sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path, shape of its weight) of what has a bias too: norms are [d], linear layers [out, in]."""
    d, f, width = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size
    yield "embeddings.LayerNorm", (width,)
    if width != d:
        yield "embeddings_project", (d, width)
    for i in range(sizes.num_hidden_layers):
        layer = layout.layer.format(i=i)
        for module in (layout.query, layout.key, layout.value, layout.attention_output):
            yield layer + module, (d, d)
        yield layer + layout.attention_norm, (d,)
        yield layer + layout.up, (f, d)
        yield layer + layout.down, (d, f)
        yield layer + layout.ffn_norm, (d,)


def _tensors(layout: ModelLayout, sizes: _Sizes) -> dict[str, tuple[int, ...]]:
    rows = {"word": sizes.vocab_size, "position": sizes.max_position_embeddings}
    rows |= {"token_type": sizes.type_vocab_size} if layout.token_types else {}
    tables = {f"embeddings.{name}_embeddings.weight": (n, sizes.embedding_size) for name, n in rows.items()}
    parts = ((module, {"weight": shape, "bias": shape[:1]}) for module, shape in _modules(layout, sizes))
    return {**tables, **{f"{module}.{part}": shape for module, both in parts for part, shape in both.items()}}


def _sites(layout: ModelLayout, sizes: _Sizes) -> tuple[Site, ...]:
    d, width = sizes.hidden_size, sizes.embedding_size
    tables = (Role.WORD_EMBEDDINGS, Role.POSITION_EMBEDDINGS)
    module = "embeddings" if width == d else "embeddings_project"
    return (
        *(Site(role.value, role, None, width, width, f"embeddings.{role}") for role in tables),
        Site("embeddings", Role.EMBEDDINGS, None, d, d, module),
        *(site for i in range(sizes.num_hidden_layers) for site in _layer_sites(layout, sizes, i)),
        *(Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN)),
    )


def _layer_sites(layout: ModelLayout, sizes: _Sizes, i: int) -> list[Site]:
    d, f, layer = sizes.hidden_size, sizes.intermediate_size, layout.layer.format(i=i)

    def at(role: Role, module: str, reads: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        return Site(f"layer.{i}.{role}", role, i, inputs, outputs, layer + module, layer + reads, **more)

    def ends(residual: tuple[str, int], norm: str) -> dict[str, Any]:
        module, argument = residual
        return {"residual": ((layer + module).rstrip("."), argument), "norm": layer + norm}

    projections = {Role.QUERY: layout.query, Role.KEY: layout.key, Role.VALUE: layout.value}
    attention = ends(layout.attention_residual, layout.attention_norm)
    return [
        *(at(role, module, module) for role, module in projections.items()),
        at(Role.ATTENTION_OUTPUT, layout.attention_dropout, layout.attention_output, **attention),
        at(Role.FFN_UP, layout.up, layout.up, outputs=f),
        at(Role.FFN_ACTIVATION, layout.activation, layout.activation, f, f),
        at(Role.FFN_OUTPUT, layout.ffn_dropout, layout.down, f, **ends(layout.ffn_residual, layout.ffn_norm)),
        at(Role.LAYER_OUTPUT, layout.layer_end, layout.layer_end),
    ]


# Role -> the values around its site: what its module reads, and what is added to its output.
_AROUND = {
    **{role: {"input": "{below}"} for role in (Role.QUERY, Role.KEY, Role.VALUE)},
    Role.ATTENTION_OUTPUT: {"input": "{layer}context", "residual": "{below}"},
    Role.FFN_UP: {"input": "{layer}attention_norm"},
    Role.FFN_ACTIVATION: {"input": "{layer}ffn_up"},
    Role.FFN_OUTPUT: {"input": "{layer}ffn_activation", "residual": "{layer}attention_norm"},
}


def _neighbours(site: Site) -> dict[str, str]:
    """Suffix of a binding -> value of the graph."""
    below = f"layer.{site.layer - 1}.layer_output" if site.layer else "embeddings"
    values = _AROUND.get(site.role, {}).items()
    return {suffix: value.format(below=below, layer=f"layer.{site.layer}.") for suffix, value in values}

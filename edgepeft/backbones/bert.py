"""BERT and its relatives: post-LN encoders (Devlin et al., 2019), one table per naming of the modules.

BERT, MiniLM, RoBERTa, XLM-R and ELECTRA name their modules alike; DistilBERT does not.  The graph is
packed: padding is dropped after the token ids, every projection runs on [tokens, d], and only
attention sees [batch, heads, seq, seq].  Gathers of head-sized rows unpack and split heads in one
copy, so a batch without padding costs no more than the usual transposes.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, e = d / h, f intermediate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import Architecture, Family, Helper, Role, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.backbones.emit import Emitter
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
_ROBERTA = ModelLayout(
    prefix="roberta.",
    counted_positions=True,
    head="roberta",
    defaults={"pad_token_id": 1},
)
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
    """The config's numbers under one set of names."""

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
        pooler = _linear("pooler.dense", sizes.hidden_size, sizes.hidden_size) if layout.pooler else {}
        offset = sizes.pad_token_id + 1 if layout.counted_positions else 0
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=sizes.hidden_size,
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
            pooler=pooler,
            norms=_norms(layout, sizes),
            inputs=(
                "input_ids",
                "attention_mask",
                *(("token_type_ids",) if _reads_token_types(layout, sizes) else ()),
            ),
            head=layout.head,
        )

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """Where each site's value, input and residual, and the helpers, stand in the graph."""
        found = {Helper.FIRST_TOKEN.value: "row.start"}
        found |= {helper.value: helper.value for helper in (Helper.POSITION, Helper.ROW)}
        for site in architecture.sites:
            found[site.name] = site.name
            for suffix, value in _neighbours(site).items():
                found[f"{site.name}.{suffix}"] = value
        return found

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
        emit = Emitter(checkpoint)
        builder = _Builder(emit, LAYOUTS[architecture.model_type], architecture)
        builder.build()
        d = architecture.hidden_size
        inputs = [_value(name, TensorProto.INT64, ("batch", "sequence")) for name in architecture.inputs]
        outputs = [
            _value("last_hidden_state", TensorProto.FLOAT, ("batch", "sequence", d)),
            _value("pooled.first", TensorProto.FLOAT, ("batch", d)),
            _value("pooled.mean", TensorProto.FLOAT, ("batch", d)),
        ]
        return emit.model(architecture.model_type, inputs, outputs)


FAMILY = Bert()


class _Builder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, emit: Emitter, layout: ModelLayout, architecture: Architecture):
        self.emit, self.layout, self.arch = emit, layout, architecture

    def build(self) -> None:
        self._pack()
        hidden = self._embed()
        for i in range(self.arch.n_layers):
            hidden = self._layer(i, hidden)
        self._outputs(hidden)

    def _weight(self, name: str) -> str:
        return self.emit.weight(name, self.arch.tensors[name])

    def _linear(self, module: str, value: str, output: str = "") -> str:
        weight, bias = self._weight(f"{module}.weight"), self._weight(f"{module}.bias")
        return self.emit.op("Add", self.emit.op("Gemm", value, weight, transB=1), bias, output=output)

    def _norm(self, module: str, value: str, output: str) -> str:
        weight, bias = self._weight(f"{module}.weight"), self._weight(f"{module}.bias")
        epsilon = self.arch.layer_norm_eps
        return self.emit.op("LayerNormalization", value, weight, bias, output=output, axis=-1, epsilon=epsilon)

    def _pack(self) -> None:
        """Which tokens are real, where each came from, and the gathers that attention needs."""
        op, ints = self.emit.op, self.emit.ints
        heads = self.emit.constant("head_range", np.arange(self.arch.n_heads), np.int64)  # (h)
        n_heads = self.emit.constant("n_heads", self.arch.n_heads, np.int64)
        zero, one = self.emit.constant("zero", 0, np.int64), self.emit.constant("one", 1, np.int64)

        shape = op("Shape", "input_ids")
        batch, length = op("Gather", shape, zero), op("Gather", shape, one)
        real = op("Cast", op("Cast", "attention_mask", to=TensorProto.BOOL), to=TensorProto.INT64)  # (B, S) of 0, 1
        flat = op("Reshape", real, ints(-1))  # (B S)
        index = op("Reshape", op("NonZero", flat), ints(-1), output="token.index")  # (T) into (B S)
        row = op("Div", index, length, output="token.row")  # (T)
        column = op("Mod", index, length, output="token.column")  # (T)
        # For each padded place the packed token that stands there; padding borrows a neighbour.
        place = op("Max", op("Sub", op("CumSum", flat, zero), one), zero)  # (B S)
        counts = op("ReduceSum", real, ints(1), keepdims=0)  # (B)
        starts = op("CumSum", counts, zero, exclusive=1, output="row.start")  # (B)
        tokens = op("Range", zero, op("Squeeze", op("Shape", index)), one)
        op("Sub", tokens, op("Gather", starts, row), output="token.position")  # (T) within its row

        split = op("Unsqueeze", op("Mul", op("Reshape", place, shape), n_heads), ints(1))  # (B, 1, S)
        split = op("Add", split, op("Unsqueeze", heads, ints(1)))  # (B, h, S) into (T h)
        merge = op("Add", op("Unsqueeze", op("Mul", row, n_heads), ints(1)), heads)  # (T, h)
        merge = op("Add", op("Mul", merge, length), op("Unsqueeze", column, ints(1)))  # (T, h) into (B h S)
        lowest = self.emit.constant("lowest", np.finfo(np.float32).min, np.float32)
        none = self.emit.constant("none", 0.0, np.float32)
        bias = op("Where", op("Cast", real, to=TensorProto.BOOL), none, lowest)
        self.mask_bias = op("Unsqueeze", bias, ints(1, 2))  # (B, 1, 1, S)
        self.index, self.row, self.column, self.place = index, row, column, place
        self.split, self.merge, self.shape, self.batch = split, merge, shape, batch
        self.counts, self.starts, self.real, self.zero, self.one = counts, starts, real, zero, one

    def _packed(self, value: str, output: str = "") -> str:
        """(B, S) -> (T)."""
        return self.emit.op("Gather", self.emit.op("Reshape", value, self.emit.ints(-1)), self.index, output=output)

    def _positions(self) -> str:
        if not self.layout.counted_positions:
            return self.column
        op = self.emit.op
        pad = self.emit.constant("pad_token_id", self.arch.pad_token_id, np.int64)
        counted = op("Cast", op("Not", op("Equal", "input_ids", pad)), to=TensorProto.INT64)  # (B, S)
        positions = op("Add", op("Mul", op("CumSum", counted, self.one), counted), pad)
        return self._packed(positions)

    def _embed(self) -> str:
        op = self.emit.op
        table = self._weight("embeddings.word_embeddings.weight")
        hidden = op("Gather", table, self._packed("input_ids"), output="word_embeddings")
        if self.layout.token_types:
            table = self._weight("embeddings.token_type_embeddings.weight")
            types = self._packed("token_type_ids") if "token_type_ids" in self.arch.inputs else self.zero
            hidden = op("Add", hidden, op("Gather", table, types))
        table = self._weight("embeddings.position_embeddings.weight")
        hidden = op("Add", hidden, op("Gather", table, self._positions(), output="position_embeddings"))
        if "embeddings_project.weight" not in self.arch.tensors:
            return self._norm("embeddings.LayerNorm", hidden, "embeddings")
        hidden = self._norm("embeddings.LayerNorm", hidden, "embeddings_norm")
        return self._linear("embeddings_project", hidden, "embeddings")

    def _layer(self, i: int, hidden: str) -> str:
        layout, layer, name = self.layout, self.layout.layer.format(i=i), f"layer.{i}."
        op = self.emit.op
        context = self._attention(i, hidden)
        attended = self._linear(layer + layout.attention_output, context, name + "attention_output")
        attended = self._norm(layer + layout.attention_norm, op("Add", attended, hidden), name + "attention_norm")
        activation, attributes = ACTIVATION_NODES[self.arch.activation]
        up = self._linear(layer + layout.up, attended, name + "ffn_up")
        up = op(activation, up, output=name + "ffn_activation", **attributes)
        down = self._linear(layer + layout.down, up, name + "ffn_output")
        return self._norm(layer + layout.ffn_norm, op("Add", down, attended), name + "layer_output")

    def _attention(self, i: int, hidden: str) -> str:
        """(T, d) -> (T, d): scaled dot products over each row's own tokens."""
        op, ints, d = self.emit.op, self.emit.ints, self.arch.hidden_size
        layer, name, e = (
            self.layout.layer.format(i=i),
            f"layer.{i}.",
            self.arch.hidden_size // self.arch.n_heads,
        )
        scale = self.emit.constant("query_scale", e**-0.5, np.float32)
        query = self._linear(layer + self.layout.query, hidden, name + "query")
        key = self._linear(layer + self.layout.key, hidden, name + "key")
        value = self._linear(layer + self.layout.value, hidden, name + "value")
        query = self._heads(op("Mul", query, scale), e)  # (B, h, S, e)
        key = op("Transpose", self._heads(key, e), perm=[0, 1, 3, 2])  # (B, h, e, S)
        scores = op("Add", op("MatMul", query, key), self.mask_bias)  # (B, h, S, S)
        context = op("MatMul", op("Softmax", scores, axis=-1), self._heads(value, e))  # (B, h, S, e)
        merged = op("Gather", op("Reshape", context, ints(-1, e)), self.merge)  # (T, h, e)
        return op("Reshape", merged, ints(-1, d), output=name + "context")

    def _heads(self, value: str, e: int) -> str:
        """(T, d) -> (B, h, S, e) in one copy."""
        return self.emit.op("Gather", self.emit.op("Reshape", value, self.emit.ints(-1, e)), self.split)

    def _outputs(self, hidden: str) -> None:
        op, ints = self.emit.op, self.emit.ints
        op("Gather", hidden, self.starts, output="pooled.first")  # (B, d)
        rows = op("Unsqueeze", op("Range", self.zero, self.batch, self.one), ints(1))  # (B, 1)
        members = op("Cast", op("Equal", self.row, rows), to=TensorProto.FLOAT)  # (B, T)
        counts = op("Unsqueeze", op("Cast", self.counts, to=TensorProto.FLOAT), ints(1))
        op("Div", op("MatMul", members, hidden), counts, output="pooled.mean")  # (B, d)
        real = op("Unsqueeze", op("Cast", self.real, to=TensorProto.FLOAT), ints(2))  # (B, S, 1)
        padded = op("Gather", hidden, op("Reshape", self.place, self.shape))  # (B, S, d)
        op("Mul", padded, real, output="last_hidden_state")  # zero where there is no token


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


def _reads_token_types(layout: ModelLayout, sizes: _Sizes) -> bool:
    return layout.token_types and sizes.type_vocab_size > 1


def _linear(module: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{module}.weight": (outputs, inputs), f"{module}.bias": (outputs,)}


def _tensors(layout: ModelLayout, sizes: _Sizes) -> dict[str, tuple[int, ...]]:
    d, width = sizes.hidden_size, sizes.embedding_size
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (sizes.vocab_size, width),
        "embeddings.position_embeddings.weight": (sizes.max_position_embeddings, width),
    }
    if layout.token_types:
        found["embeddings.token_type_embeddings.weight"] = (sizes.type_vocab_size, width)
    found |= _norm("embeddings.LayerNorm", width)
    if width != d:
        found |= _linear("embeddings_project", width, d)
    for i in range(sizes.num_hidden_layers):
        layer = layout.layer.format(i=i)
        for module in (layout.query, layout.key, layout.value, layout.attention_output):
            found |= _linear(layer + module, d, d)
        found |= _norm(layer + layout.attention_norm, d)
        found |= _linear(layer + layout.up, d, sizes.intermediate_size)
        found |= _linear(layer + layout.down, sizes.intermediate_size, d)
        found |= _norm(layer + layout.ffn_norm, d)
    return found


def _norm(module: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{module}.weight": (width,), f"{module}.bias": (width,)}


def _norms(layout: ModelLayout, sizes: _Sizes) -> tuple[str, ...]:
    layers = [layout.layer.format(i=i) for i in range(sizes.num_hidden_layers)]
    inner = [layer + norm for layer in layers for norm in (layout.attention_norm, layout.ffn_norm)]
    return ("embeddings.LayerNorm", *inner)


def _sites(layout: ModelLayout, sizes: _Sizes) -> tuple[Site, ...]:
    d = sizes.hidden_size
    width = sizes.embedding_size
    tables = (Role.WORD_EMBEDDINGS, Role.POSITION_EMBEDDINGS)
    found = [Site(role.value, role, None, width, width, f"embeddings.{role}") for role in tables]
    module = "embeddings" if width == d else "embeddings_project"
    found += [Site("embeddings", Role.EMBEDDINGS, None, d, d, module)]
    for i in range(sizes.num_hidden_layers):
        found += _layer_sites(layout, sizes, i)
    found += [Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN)]
    return tuple(found)


def _layer_sites(layout: ModelLayout, sizes: _Sizes, i: int) -> list[Site]:
    d, layer = sizes.hidden_size, layout.layer.format(i=i)

    def at(role: Role, module: str, reads: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        return Site(f"layer.{i}.{role}", role, i, inputs, outputs, layer + module, layer + reads, **more)

    def outside(where: tuple[str, int]) -> tuple[str, int]:
        return ((layer + where[0]).rstrip("."), where[1])

    attention: dict[str, Any] = {"residual": outside(layout.attention_residual)}
    attention["norm"] = layer + layout.attention_norm
    ffn: dict[str, Any] = {"residual": outside(layout.ffn_residual), "norm": layer + layout.ffn_norm}
    return [
        at(Role.QUERY, layout.query, layout.query),
        at(Role.KEY, layout.key, layout.key),
        at(Role.VALUE, layout.value, layout.value),
        at(Role.ATTENTION_OUTPUT, layout.attention_dropout, layout.attention_output, **attention),
        at(Role.FFN_UP, layout.up, layout.up, outputs=sizes.intermediate_size),
        at(Role.FFN_OUTPUT, layout.ffn_dropout, layout.down, sizes.intermediate_size, **ffn),
        at(Role.LAYER_OUTPUT, layout.layer_end, layout.layer_end),
    ]


def _neighbours(site: Site) -> dict[str, str]:
    """The values around a site: what its module reads, and what is added to its output."""
    if site.layer is None:
        return {}
    below = "embeddings" if site.layer == 0 else f"layer.{site.layer - 1}.layer_output"
    here = f"layer.{site.layer}."
    return {
        Role.QUERY: {"input": below},
        Role.KEY: {"input": below},
        Role.VALUE: {"input": below},
        Role.ATTENTION_OUTPUT: {"input": here + "context", "residual": below},
        Role.FFN_UP: {"input": here + "attention_norm"},
        Role.FFN_OUTPUT: {"input": here + "ffn_activation", "residual": here + "attention_norm"},
    }.get(site.role, {})


def _value(name: str, dtype: int, shape: tuple[str | int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)

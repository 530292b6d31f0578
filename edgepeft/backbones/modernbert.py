"""ModernBERT (Warner et al., 2024, arXiv:2412.13663): pre-LN layers without biases, of a config of transformers 4 or 5.

Positions are rotary, feed-forwards gated, and most layers' attention sees a window around each token.  Query, key and
value are one product, the feed-forward's two first products another: the sites are parts of these.

Letters: B batch, S padded length, T real tokens, d hidden, f intermediate, e = d / heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx

from edgepeft.backbones._bert import ACTIVATION_NODES
from edgepeft.backbones.base import Architecture, Attention, Family, Pooling, Role, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing
from edgepeft.backbones.positions import Rotary
from edgepeft.backbones.windows import windows
from edgepeft.common.errors import UsageError

__all__ = ["mapping", "refuse_scaling"]


class ModernBert(Family):
    """ModernBERT, of transformers 4 and 5."""

    name: ClassVar[str] = "modernbert"
    model_types: ClassVar[tuple[str, ...]] = ("modernbert",)
    limits: ClassVar[tuple[str, ...]] = (
        "The methods prefix and mam are refused: keys are turned by their places and seen in windows.",
        "Rotary positions that are not scaled, of all of a head's numbers.",
        "Deltas neither come from other libraries nor go there: their classifier's head is none of edgepeft's.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
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
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d]."""
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


# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS = {
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
    "max_position_embeddings": 8192,
}
# Which modules have biases where a config says so; no published ModernBERT has some.
_BIASES = {"attention_bias": ("attn.Wqkv", "attn.Wo"), "mlp_bias": ("mlp.Wi", "mlp.Wo"), "norm_bias": ("norm",)}
_POOLINGS = {"cls": Pooling.FIRST, "mean": Pooling.MEAN}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# A layer's kind of attention -> where transformers 4 keeps its RoPE's base, and what both versions take for it.
_THETAS = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}


@dataclass(frozen=True)
class Sizes:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    pad_token_id: int
    hidden_activation: str
    norm_eps: float
    biased: tuple[str, ...]  # how the modules' names end


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    kinds = {name: kind for name, kind in Sizes.__annotations__.items() if name != "biased"}
    values = {name: checked(name, config.get(name, _DEFAULTS.get(name)), kind) for name, kind in kinds.items()}
    for key in _BIASES:
        if not isinstance(config.get(key, False), bool):
            raise UsageError(f"the config's {key} is {config[key]!r}; supported: true and false.")
    biased = tuple(name for key, names in _BIASES.items() if config.get(key, False) for name in names)
    sizes = Sizes(**values, biased=biased)
    if sizes.hidden_size % (2 * sizes.num_attention_heads):
        raise UsageError(
            f"the config's num_attention_heads is {sizes.num_attention_heads}, which does not divide its hidden_size "
            f"{sizes.hidden_size} into heads of even width."
        )
    if sizes.num_hidden_layers > MOST_LAYERS:
        raise UsageError(f"the config asks for {sizes.num_hidden_layers} layers; at most {MOST_LAYERS} are built.")
    if sizes.pad_token_id >= sizes.vocab_size:
        raise UsageError(f"the config's pad_token_id is {sizes.pad_token_id}, beyond its vocabulary.")
    if sizes.hidden_activation not in ACTIVATION_NODES:
        known = ", ".join(ACTIVATION_NODES)
        raise UsageError(f"the config's hidden_activation is {sizes.hidden_activation!r}; supported: {known}.")
    return sizes


def pooling_of(config: Mapping[str, Any]) -> Pooling:
    found = config.get("classifier_pooling", "cls")
    if not isinstance(found, str) or found not in _POOLINGS:
        raise UsageError(f"the config's classifier_pooling is {found!r}; supported: {', '.join(_POOLINGS)}.")
    return _POOLINGS[found]


def attention_of(config: Mapping[str, Any], n_layers: int) -> tuple[Attention, ...]:
    """Each layer's."""
    reach = checked("local_attention", config.get("local_attention", 128), "int") // 2  # the window is of both sides
    known = {_GLOBAL: Attention(_theta(config, _GLOBAL), None), _LOCAL: Attention(_theta(config, _LOCAL), reach)}
    return tuple(known[kind] for kind in _kinds(config, n_layers))


def _kinds(config: Mapping[str, Any], n_layers: int) -> list[str]:
    """Each layer's kind: ``layer_types`` of transformers 5, or every n-th global of transformers 4."""
    if config.get("layer_types") is None:
        key = "global_attn_every_n_layers"
        every = checked(key, config.get(key, 3), "int")
        return [_LOCAL if i % every else _GLOBAL for i in range(n_layers)]
    kinds = config["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != n_layers:
        raise UsageError(f"the config's layer_types must name the attention of {n_layers} layers; found {kinds!r}.")
    for kind in kinds:
        if kind not in (_GLOBAL, _LOCAL):
            raise UsageError(f"the config's layer_types has {kind!r}; supported: {_GLOBAL}, {_LOCAL}.")
    return kinds


def _theta(config: Mapping[str, Any], kind: str) -> float:
    """RoPE's base: in ``rope_parameters`` of transformers 5, by a key of its own in transformers 4."""
    both = mapping("rope_parameters", config.get("rope_parameters"))
    own = mapping("rope_parameters", both.get(kind))
    for settings in (both, own):  # as other models have them, of no kind of layer
        refuse_scaling("rope_parameters", settings)
    refuse_scaling("rope_scaling", mapping("rope_scaling", config.get("rope_scaling")))
    key, default = _THETAS[kind]
    theta = own.get("rope_theta", config.get(key, default))
    if theta is None and kind == _LOCAL:
        return _theta(config, _GLOBAL)
    wrong = isinstance(theta, bool) or not isinstance(theta, (int, float))
    if wrong or not math.isfinite(theta) or theta < 1:
        raise UsageError(f"the config's {key} (or rope_theta) must be a number from 1 on; found {theta!r}.")
    return float(theta)


def refuse_scaling(key: str, settings: Mapping[str, Any]) -> None:
    """Raises UsageError where rotary positions are scaled, or turn a part of a head."""
    scaling = settings.get("rope_type", settings.get("type", "default"))
    if scaling != "default":
        raise UsageError(f"the config's {key} has the rope_type {scaling!r}; supported: default, which scales nothing.")
    if (part := settings.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UsageError(f"the config's {key} has the partial_rotary_factor {part!r}; supported: 1.0.")


def mapping(key: str, value: Any) -> Mapping[str, Any]:
    """A config's object, empty where there is none; raises UsageError where it is something else."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"the config's {key} must be an object; found {value!r}.")
    return value or {}


def norms_of(sizes: Sizes) -> Iterator[str]:
    """One before each sub-layer, but for the first layer's attention, which reads what is past the embeddings' norm."""
    yield "embeddings.norm"
    for i in range(sizes.num_hidden_layers):
        yield from (f"layers.{i}.{norm}" for norm in ("attn_norm", "mlp_norm") if i or norm == "mlp_norm")
    yield "final_norm"


def tensors_of(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    d, f = sizes.hidden_size, sizes.intermediate_size
    tensors: dict[str, tuple[int, ...]] = {"embeddings.tok_embeddings.weight": (sizes.vocab_size, d)}
    matrices = {"attn.Wqkv": (3 * d, d), "attn.Wo": (d, d), "mlp.Wi": (2 * f, d), "mlp.Wo": (d, f)}
    modules: dict[str, tuple[int, ...]] = {
        f"layers.{i}.{module}": shape for i in range(sizes.num_hidden_layers) for module, shape in matrices.items()
    }
    modules |= dict.fromkeys(norms_of(sizes), (d,))
    biases = {f"{name}.bias": shape[:1] for name, shape in modules.items() if name.endswith(sizes.biased)}
    return tensors | {f"{name}.weight": shape for name, shape in modules.items()} | biases


def sites_of(sizes: Sizes) -> tuple[Site, ...]:
    d, words = sizes.hidden_size, "embeddings.tok_embeddings"
    return (
        Site(Role.WORD_EMBEDDINGS.value, Role.WORD_EMBEDDINGS, None, d, d, words),
        Site(Role.EMBEDDINGS.value, Role.EMBEDDINGS, None, d, d, "embeddings"),
        *(site for i in range(sizes.num_hidden_layers) for site in _layer_sites(sizes, i)),
        Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, "final_norm", "final_norm"),
        *(Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN)),
    )


def _layer_sites(sizes: Sizes, i: int) -> Iterator[Site]:
    d, f, layer = sizes.hidden_size, sizes.intermediate_size, f"layers.{i}"

    def at(role: Role, module: str, reads: str, widths: tuple[int, int] = (d, d), **more: Any) -> Site:
        return Site(f"layer.{i}.{role}", role, i, *widths, f"{layer}.{module}", f"{layer}.{reads}", **more)

    def parts(module: str, width: int, *roles: Role) -> Iterator[Site]:
        for part, role in enumerate(roles):
            yield at(role, module, module, (d, width), columns=(part * width, (part + 1) * width))

    if i:
        yield at(Role.ATTENTION_NORM, "attn_norm", "attn_norm")
    yield from parts("attn.Wqkv", d, Role.QUERY, Role.KEY, Role.VALUE)
    yield at(Role.ATTENTION_OUTPUT, "attn.out_drop", "attn.Wo", residual=(layer, 0))
    yield at(Role.FFN_NORM, "mlp_norm", "mlp_norm")
    yield from parts("mlp.Wi", f, Role.FFN_GATE, Role.FFN_GATED)
    yield at(Role.FFN_ACTIVATION, "mlp.drop", "mlp.act", (f, f))
    yield at(Role.FFN_OUTPUT, "mlp.Wo", "mlp.Wo", (f, d), residual=(f"{layer}.mlp_norm", 0))
    yield Site(f"layer.{i}.{Role.LAYER_OUTPUT}", Role.LAYER_OUTPUT, i, d, d, layer, layer)


# Role -> the values around its site: what its module reads, and what is added to its output.
_AROUND = {
    **{role: {"input": "{normed}"} for role in (Role.QUERY, Role.KEY, Role.VALUE)},
    Role.ATTENTION_OUTPUT: {"input": "{layer}context", "residual": "{below}"},
    **{role: {"input": "{layer}ffn_norm"} for role in (Role.FFN_GATE, Role.FFN_GATED)},
    Role.FFN_OUTPUT: {"input": "{layer}ffn_activation", "residual": "{layer}attention_output.sum"},
}


def neighbours(site: Site) -> dict[str, str]:
    """Suffix of a binding -> value of the graph."""
    layer = f"layer.{site.layer}."
    below = f"layer.{site.layer - 1}.layer_output" if site.layer else "embeddings"
    here = {"layer": layer, "below": below, "normed": f"{layer}attention_norm" if site.layer else below}
    return {suffix: value.format(**here) for suffix, value in _AROUND.get(site.role, {}).items()}

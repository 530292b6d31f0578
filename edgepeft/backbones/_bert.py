"""The shapes of BERT and its relatives: sizes, tensors and sites of a config; their names are in ``_layouts.py``.

Letters: d hidden, f intermediate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepeft.backbones._layouts import BUCKETS, ModelLayout
from edgepeft.backbones.base import Role, Site
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.common.errors import UsageError

__all__ = [
    "ACTIVATION_NODES",
    "SILU",
    "Sizes",
    "layer_paths",
    "modules_of",
    "neighbours",
    "sites_of",
    "sizes_of",
    "tensors_of",
]

# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}
# Activation in the config -> (ONNX operator, attributes).
ACTIVATION_NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}
SILU = "silu"  # x times its sigmoid, which gates alone have


@dataclass(frozen=True)
class Sizes:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    pad_token_id: int
    embedding_size: int
    num_hidden_groups: int
    task_type_vocab_size: int
    hidden_act: str
    layer_norm_eps: float


def sizes_of(config: Mapping[str, Any], layout: ModelLayout) -> Sizes:
    if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
        raise UsageError(f"the config's position_embedding_type is {positions!r}; supported: absolute.")
    for key in ("is_decoder", "add_cross_attention"):
        if config.get(key):
            raise UsageError(f"the config's {key} is {config[key]!r}, of a decoder; supported: false.")
    for name, value in layout.fixed.items():
        if config.get(name, value) != value:
            raise UsageError(f"the config's {name} is {config[name]!r}; {config['model_type']} has {value}.")
    defaults = {**_DEFAULTS, **layout.defaults}
    values: dict[str, Any] = {}
    for name, kind in Sizes.__annotations__.items():
        key = layout.keys.get(name, name)
        read, otherwise = _read_by_some(config, layout, values).get(name, (True, None))
        values[name] = checked(key, config.get(key, defaults.get(name)), kind) if read else otherwise
    if values["hidden_size"] % values["num_attention_heads"]:
        raise UsageError(
            f"the config's hidden_size is {values['hidden_size']}, not a multiple of its "
            f"{values['num_attention_heads']} num_attention_heads."
        )
    if values["num_hidden_layers"] > MOST_LAYERS:
        raise UsageError(f"the config asks for {values['num_hidden_layers']} layers; at most {MOST_LAYERS} are built.")
    if values["num_hidden_groups"] > values["num_hidden_layers"]:
        raise UsageError(
            f"the config's num_hidden_groups is {values['num_hidden_groups']}, more than its "
            f"{values['num_hidden_layers']} layers."
        )
    offset = values["pad_token_id"] + 1 if layout.counted_positions else 0
    if values["max_position_embeddings"] <= offset or values["pad_token_id"] >= values["vocab_size"]:
        raise UsageError(
            f"the config's pad_token_id is {values['pad_token_id']}, which lies beyond its vocabulary of "
            f"{values['vocab_size']} or its {values['max_position_embeddings']} position embeddings."
        )
    activations = (*ACTIVATION_NODES, SILU) if layout.gate else tuple(ACTIVATION_NODES)
    if values["hidden_act"] not in activations:
        known = ", ".join(activations)
        raise UsageError(f"the config's activation is {values['hidden_act']!r}; supported: {known}.")
    return Sizes(**values)


def _read_by_some(
    config: Mapping[str, Any], layout: ModelLayout, values: Mapping[str, Any]
) -> dict[str, tuple[bool, int | None]]:
    """Name -> whether the model type's code reads it, and what it is where that does not; others may stand there."""
    known = layout.defaults.get("embedding_size") or config.get("embedding_size")  # as wide as layers where not said
    projected = bool(layout.projection and known)
    return {
        "embedding_size": (projected, values.get("hidden_size")),
        "type_vocab_size": (layout.token_types, _DEFAULTS["type_vocab_size"]),
        "num_hidden_groups": (layout.shares_layers, values.get("num_hidden_layers")),
        "task_type_vocab_size": (layout.task_types and bool(config.get("use_task_id")), 0),
    }


def layer_paths(layout: ModelLayout, sizes: Sizes) -> list[str]:
    """Each layer's, with its dot: those of a group are in one place (Lan et al., 2020, section 3.1)."""
    n, groups = sizes.num_hidden_layers, sizes.num_hidden_groups
    return [layout.layer.format(i=int(i / (n / groups))) for i in range(n)]  # in floats, as in transformers' code


def projection_of(layout: ModelLayout, sizes: Sizes) -> str:
    """The module between the embeddings and the first layer; nothing where there is none."""
    return layout.projection if layout.always_projects or sizes.embedding_size != sizes.hidden_size else ""


def modules_of(layout: ModelLayout, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path, shape of its weight): norms are [d], linear layers [out, in]."""
    d, f, width = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size
    if layout.embeddings_norm:
        yield "embeddings.LayerNorm", (width,)
    if projection := projection_of(layout, sizes):
        yield projection, (d, width)
    for layer in dict.fromkeys(layer_paths(layout, sizes)):
        for module in (layout.query, layout.key, layout.value, layout.attention_output):
            yield layer + module, (d, d)
        yield layer + layout.attention_norm, (d,)
        yield from ((layer + module, (f, d)) for module in (layout.gate, layout.up) if module)
        yield layer + layout.down, (d, f)
        yield layer + layout.ffn_norm, (d,)
    if layout.last_norm:
        yield layout.last_norm, (d,)


def tensors_of(layout: ModelLayout, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    rows = {"word": sizes.vocab_size}
    rows |= {"position": sizes.max_position_embeddings} if layout.positions else {}
    rows |= {"token_type": sizes.type_vocab_size} if layout.token_types else {}
    rows |= {"task_type": sizes.task_type_vocab_size} if sizes.task_type_vocab_size else {}
    tables = {f"embeddings.{name}_embeddings.weight": (n, sizes.embedding_size) for name, n in rows.items()}
    tables |= {layout.distances: (BUCKETS, sizes.num_attention_heads)} if layout.distances else {}
    parts = (
        (module, {"weight": shape} | ({} if module.endswith(layout.unbiased) else {"bias": shape[:1]}))
        for module, shape in modules_of(layout, sizes)
    )
    return {**tables, **{f"{module}.{part}": shape for module, both in parts for part, shape in both.items()}}


def sites_of(layout: ModelLayout, sizes: Sizes) -> tuple[Site, ...]:
    d, width = sizes.hidden_size, sizes.embedding_size
    tables = (Role.WORD_EMBEDDINGS, *([Role.POSITION_EMBEDDINGS] if layout.positions else []))
    module = projection_of(layout, sizes) or "embeddings"
    layers = layer_paths(layout, sizes)
    return (
        *(Site(role.value, role, None, width, width, f"embeddings.{role}") for role in tables),
        Site("embeddings", Role.EMBEDDINGS, None, d, d, module),
        *_lengthened_sites(layout, sizes, layers),
        *(site for i in range(len(layers)) for site in _layer_sites(layout, sizes, layers, i)),
        *_last_sites(layout, d),
        *(Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN)),
    )


_POSITION_IDS = Site(
    Role.POSITION_IDS.value,
    Role.POSITION_IDS,
    None,
    1,
    1,
    "embeddings.position_embeddings",
    enters=True,
    shape=("tokens",),
)


def _lengthened_sites(layout: ModelLayout, sizes: Sizes, layers: Sequence[str]) -> list[Site]:
    """What has to know of keys that are no tokens'."""
    if not layout.masked:
        return []
    role, shape = Role.ATTENTION_BIAS, ("batch", 1, 1, "places")
    sites = [_POSITION_IDS, Site(role.value, role, None, 1, 1, layout.masked, shape=shape, argument=1)]
    if layout.distances:
        module, argument = layout.distances_enter
        first, *others = (layer + module for layer in layers)
        role, across = Role.DISTANCE_BIAS, (sizes.num_attention_heads, "queries", "places")
        sites.append(Site(role.value, role, None, 1, 1, first, shape=across, argument=argument, others=tuple(others)))
    return sites


def _last_sites(layout: ModelLayout, d: int) -> list[Site]:
    norm = layout.last_norm
    return [Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, norm, norm)] if norm else []


def _layer_sites(layout: ModelLayout, sizes: Sizes, layers: Sequence[str], i: int) -> list[Site]:
    d, f, layer = sizes.hidden_size, sizes.intermediate_size, layers[i]
    call = (layers[:i].count(layer), layers.count(layer))

    def at(role: Role, module: str, reads: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        return Site(f"layer.{i}.{role}", role, i, inputs, outputs, layer + module, layer + reads, call=call, **more)

    def ends(residual: tuple[str, int], norm: str) -> dict[str, Any]:
        module, argument = residual
        found: dict[str, Any] = {"residual": ((layer + module).rstrip("."), argument)}
        return found if layout.last_norm else found | {"norm": layer + norm}

    def before(role: Role, norm: str) -> list[Site]:
        return [at(role, norm, norm)] if layout.last_norm else []

    projections = {Role.QUERY: layout.query, Role.KEY: layout.key, Role.VALUE: layout.value}
    attention = ends(layout.attention_residual, layout.attention_norm)
    split = ("batch", sizes.num_attention_heads, "places", d // sizes.num_attention_heads)
    heads = {Role.KEY_HEADS: layout.key, Role.VALUE_HEADS: layout.value} if layout.masked else {}
    first = {Role.FFN_GATE: layout.gate, Role.FFN_GATED: layout.up} if layout.gate else {Role.FFN_UP: layout.up}
    gated = layout.down if layout.gate else ""
    return [
        *before(Role.ATTENTION_NORM, layout.attention_norm),
        *(at(role, module, module) for role, module in projections.items()),
        *(
            Site(f"layer.{i}.{role}", role, i, d, d, layer + module, shape=split, call=call)
            for role, module in heads.items()
        ),
        at(Role.ATTENTION_OUTPUT, layout.attention_dropout, layout.attention_output, **attention),
        *before(Role.FFN_NORM, layout.ffn_norm),
        *(at(role, module, module, outputs=f) for role, module in first.items()),
        # What is gated is no module's output, but what the next one reads.
        at(Role.FFN_ACTIVATION, gated or layout.activation, layout.activation, f, f, enters=bool(gated)),
        at(Role.FFN_OUTPUT, layout.ffn_dropout, layout.down, f, **ends(layout.ffn_residual, layout.ffn_norm)),
        at(Role.LAYER_OUTPUT, layout.layer_end, layout.layer_end),
    ]


# Role -> the values around its site: what its module reads, and what is added to its output.
_AROUND: Mapping[Role, Mapping[str, str]] = {
    **{role: {"input": "{below}"} for role in (Role.QUERY, Role.KEY, Role.VALUE)},
    Role.ATTENTION_OUTPUT: {"input": "{layer}context", "residual": "{below}"},
    **{role: {"input": "{layer}attention_norm"} for role in (Role.FFN_UP, Role.FFN_GATE, Role.FFN_GATED)},
    Role.FFN_ACTIVATION: {"input": "{layer}ffn_up"},
    Role.FFN_OUTPUT: {"input": "{layer}ffn_activation", "residual": "{layer}attention_norm"},
}


# The same where norms stand first; none is read by what is added.
_AROUND_PRE_NORM: Mapping[Role, Mapping[str, str]] = {
    **_AROUND,
    **{role: {"input": "{layer}attention_norm"} for role in (Role.QUERY, Role.KEY, Role.VALUE)},
    Role.FFN_UP: {"input": "{layer}ffn_norm"},
    Role.FFN_OUTPUT: {"input": "{layer}ffn_activation", "residual": "{layer}attention_output.sum"},
}


def neighbours(site: Site, *, pre_norm: bool = False) -> dict[str, str]:
    """Suffix of a binding -> value of the graph."""
    around = _AROUND_PRE_NORM if pre_norm else _AROUND
    below = f"layer.{site.layer - 1}.layer_output" if site.layer else "embeddings"
    values = around.get(site.role, {}).items()
    return {suffix: value.format(below=below, layer=f"layer.{site.layer}.") for suffix, value in values}

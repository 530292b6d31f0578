"""The shapes of BERT and its relatives: one table per naming of the modules; sizes, tensors and sites of a config.

BERT, MiniLM, RoBERTa, XLM-R and ELECTRA name their modules alike; DistilBERT and MPNet do not.

Letters: d hidden, f intermediate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgepeft.backbones.base import Role, Site
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.errors import UsageError

__all__ = [
    "ACTIVATION_NODES",
    "BUCKETS",
    "FURTHEST",
    "LAYOUTS",
    "ModelLayout",
    "Sizes",
    "modules_of",
    "neighbours",
    "sites_of",
    "sizes_of",
    "tensors_of",
]

BUCKETS, FURTHEST = 32, 128  # of distances, in MPNet's code


@dataclass(frozen=True)
class ModelLayout:
    """Where a model type keeps its parts: module paths, config keys, and what else differs."""

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
    positions: bool = True  # a table of them, added to the words'
    token_types: bool = True
    counted_positions: bool = False  # from the count of ids != pad, not from the column
    distances: str = ""  # the table of what is added to attention for a distance between two tokens
    pooler: bool = False
    head: str = "linear"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the config's
    lengthens: bool = False  # whether its code attends to more keys than tokens, as for a prefix
    fixed: Mapping[str, int] = field(default_factory=dict)  # what the model's code takes, whatever a config says


# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}
_ROBERTA = ModelLayout(
    prefix="roberta.", counted_positions=True, lengthens=True, head="roberta", defaults={"pad_token_id": 1}
)
LAYOUTS = {
    "bert": ModelLayout(prefix="bert.", pooler=True, lengthens=True, head="bert-pooler"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": ModelLayout(prefix="electra.", lengthens=True, head="electra", defaults={"embedding_size": 128}),
    "mpnet": ModelLayout(
        prefix="mpnet.",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_dropout="attention.dropout",
        attention_norm="attention.LayerNorm",
        attention_residual=("attention", 0),
        token_types=False,
        counted_positions=True,
        distances="encoder.relative_attention_bias.weight",
        head="roberta",
        defaults={"pad_token_id": 1},
        fixed={"pad_token_id": 1, "relative_attention_num_buckets": BUCKETS},
    ),
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
    hidden_act: str
    layer_norm_eps: float


def sizes_of(config: Mapping[str, Any], layout: ModelLayout) -> Sizes:
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UsageError("relative position embeddings are not supported; use a checkpoint with absolute ones.")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UsageError("the config describes a decoder; edgepeft runs encoders.")
    for name, value in layout.fixed.items():
        if config.get(name, value) != value:
            raise UsageError(f"the config's {name} is {config[name]!r}; {config['model_type']} has {value}.")
    defaults = {**_DEFAULTS, **layout.defaults}
    values: dict[str, Any] = {}
    for name, kind in Sizes.__annotations__.items():
        key = layout.keys.get(name, name)
        value = config.get(key, defaults.get(name))
        if name == "embedding_size" and config["model_type"] != "electra":
            value = values["hidden_size"]  # only ELECTRA reads that key
        if name == "type_vocab_size" and not layout.token_types:
            value = defaults[name]  # likewise; some have 0
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
    return Sizes(**values)


def modules_of(layout: ModelLayout, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
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


def tensors_of(layout: ModelLayout, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    rows = {"word": sizes.vocab_size}
    rows |= {"position": sizes.max_position_embeddings} if layout.positions else {}
    rows |= {"token_type": sizes.type_vocab_size} if layout.token_types else {}
    tables = {f"embeddings.{name}_embeddings.weight": (n, sizes.embedding_size) for name, n in rows.items()}
    tables |= {layout.distances: (BUCKETS, sizes.num_attention_heads)} if layout.distances else {}
    parts = ((module, {"weight": shape, "bias": shape[:1]}) for module, shape in modules_of(layout, sizes))
    return {**tables, **{f"{module}.{part}": shape for module, both in parts for part, shape in both.items()}}


def sites_of(layout: ModelLayout, sizes: Sizes) -> tuple[Site, ...]:
    d, width = sizes.hidden_size, sizes.embedding_size
    tables = (Role.WORD_EMBEDDINGS, *([Role.POSITION_EMBEDDINGS] if layout.positions else []))
    module = "embeddings" if width == d else "embeddings_project"
    return (
        *(Site(role.value, role, None, width, width, f"embeddings.{role}") for role in tables),
        Site("embeddings", Role.EMBEDDINGS, None, d, d, module),
        *([_POSITION_IDS, _ATTENTION_BIAS] if layout.lengthens else []),
        *(site for i in range(sizes.num_hidden_layers) for site in _layer_sites(layout, sizes, i)),
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
_ATTENTION_BIAS = Site(
    Role.ATTENTION_BIAS.value,
    Role.ATTENTION_BIAS,
    None,
    1,
    1,
    "encoder",
    shape=("batch", 1, 1, "places"),
    keyword="attention_mask",
)


def _layer_sites(layout: ModelLayout, sizes: Sizes, i: int) -> list[Site]:
    d, f, layer = sizes.hidden_size, sizes.intermediate_size, layout.layer.format(i=i)

    def at(role: Role, module: str, reads: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        return Site(f"layer.{i}.{role}", role, i, inputs, outputs, layer + module, layer + reads, **more)

    def ends(residual: tuple[str, int], norm: str) -> dict[str, Any]:
        module, argument = residual
        return {"residual": ((layer + module).rstrip("."), argument), "norm": layer + norm}

    projections = {Role.QUERY: layout.query, Role.KEY: layout.key, Role.VALUE: layout.value}
    attention = ends(layout.attention_residual, layout.attention_norm)
    split = ("batch", sizes.num_attention_heads, "places", d // sizes.num_attention_heads)
    heads = {Role.KEY_HEADS: layout.key, Role.VALUE_HEADS: layout.value} if layout.lengthens else {}
    return [
        *(at(role, module, module) for role, module in projections.items()),
        *(Site(f"layer.{i}.{role}", role, i, d, d, layer + module, shape=split) for role, module in heads.items()),
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


def neighbours(site: Site) -> dict[str, str]:
    """Suffix of a binding -> value of the graph."""
    below = f"layer.{site.layer - 1}.layer_output" if site.layer else "embeddings"
    values = _AROUND.get(site.role, {}).items()
    return {suffix: value.format(below=below, layer=f"layer.{site.layer}.") for suffix, value in values}

"""Where a model type of BERT's kind keeps its parts, and what else differs: a row; and a config's sizes by it.

Most name their parts as BERT does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.common.errors import UsageError

BUCKETS, FURTHEST = 32, 128  # of distances, in MPNet's code
# Of positions that are learnt; of no decoder.
ENCODERS: Mapping[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
# Activation in the config -> (ONNX operator, attributes).
ACTIVATION_NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}
SILU = "silu"  # x times its sigmoid, which gates alone have


@dataclass(frozen=True)
class ModelLayout:
    """Where a model type keeps its parts: module paths, config keys, and what else differs.

    Query, key and value of one name are parts of one product, gate and up likewise.
    """

    prefix: str  # of the base model in checkpoints of whole models
    words: str = "embeddings.word_embeddings"
    embeddings_norm: str = "embeddings.LayerNorm"  # none in some
    layer: str = "encoder.layer.{i}."
    shares_layers: bool = False  # several may be one set of tensors, and ``i`` then counts these
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_dropout: str = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    attention_residual: tuple[str, int] = ("attention.output", 1)
    up: str = "intermediate.dense"
    gate: str = ""  # where there are two first products, the one past which the activation comes; ``up`` is the other
    gated: str = ""  # the module that gives both, multiplied; none where it is what ``down`` reads
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    ffn_dropout: str = "output.dropout"
    ffn_residual: tuple[str, int] = ("output", 1)
    ffn_norm: str = "output.LayerNorm"
    layer_end: str = "output"
    unbiased: tuple[str, ...] = ()  # how the names of modules without a bias end
    positions: bool = True  # a table of them, added to the words'
    token_types: bool = True
    counted_positions: bool = False  # from the count of ids != pad, not from the column
    rotary: Literal["", "halves", "neighbours"] = ""  # which pairs of a head's numbers positions turn
    distances: str = ""  # the table of what is added to attention for a distance between two tokens
    distances_enter: tuple[str, int] = ("", 0)  # a layer's module, and which of its arguments that is
    task_types: bool = False  # a table of them, all texts being of the first, where use_task_id says so
    projection: str = ""  # from the embeddings' own size to the layers', where there is one
    always_projects: bool = False  # of equal sizes too
    last_norm: str = ""  # past the last layer, where norms stand before sub-layers, not after the sums
    first_norm: bool = True  # whether such a norm stands before the first layer's attention too
    pooler: str = ""
    head: str = "linear"
    foreign_head: str = ""  # what transformers' classifier has where no head of ours does
    activations: tuple[str, ...] = tuple(ACTIVATION_NODES)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the config's
    masked: str = "encoder"  # the module whose second argument is the mask; none if keys must be as many as tokens
    reference: str = "eager"  # the attention that ours is compared with
    fixed: Mapping[str, Any] = field(default_factory=lambda: ENCODERS)  # of these keys no other value is supported


# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0}


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
    for name, value in layout.fixed.items():
        if config.get(name) not in (None, value):
            raise UsageError(f"the config's {name} is {config[name]!r}; {config['model_type']} has {value}.")
    defaults = {**_DEFAULTS, **layout.defaults}
    values: dict[str, Any] = {}
    for name, kind in Sizes.__annotations__.items():
        key = layout.keys.get(name, name)
        read, otherwise = _read_by_some(config, layout, values).get(name, (True, None))
        values[name] = checked(key, config.get(key, defaults.get(name)), kind) if read else otherwise
    sizes = Sizes(**values)
    d, heads = sizes.hidden_size, sizes.num_attention_heads
    if layout.rotary and d % (2 * heads):
        raise UsageError(
            f"the config's num_attention_heads is {heads}, which does not divide its hidden_size {d} into heads of "
            "even width."
        )
    if d % heads:
        raise UsageError(f"the config's hidden_size is {d}, not a multiple of its {heads} num_attention_heads.")
    if sizes.num_hidden_layers > MOST_LAYERS:
        raise UsageError(f"the config asks for {sizes.num_hidden_layers} layers; at most {MOST_LAYERS} are built.")
    if sizes.num_hidden_groups > sizes.num_hidden_layers:
        raise UsageError(
            f"the config's num_hidden_groups is {sizes.num_hidden_groups}, more than its {sizes.num_hidden_layers} "
            "layers."
        )
    offset = sizes.pad_token_id + 1 if layout.counted_positions else 0
    if sizes.max_position_embeddings <= offset or sizes.pad_token_id >= sizes.vocab_size:
        raise UsageError(
            f"the config's pad_token_id is {sizes.pad_token_id}, which lies beyond its vocabulary of "
            f"{sizes.vocab_size} or its {sizes.max_position_embeddings} position embeddings."
        )
    if sizes.hidden_act not in layout.activations:
        key, known = layout.keys.get("hidden_act", "activation"), ", ".join(layout.activations)
        raise UsageError(f"the config's {key} is {sizes.hidden_act!r}; supported: {known}.")
    return sizes


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

"""A row for each model type of BERT's kind: module paths and other differences; sizes, tensors and sites from it.

Most name their parts as BERT does.  Letters: d hidden, f intermediate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgepeft.backbones.base import Role, Site
from edgepeft.backbones.config import KEYS, Sizes, read_sizes, require_known
from edgepeft.common.errors import UsageError

BUCKETS, FURTHEST = 32, 128  # of distances, in MPNet's code
# Of positions that are learnt; of no decoder.
ENCODERS: Mapping[str, Any] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


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
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    gate: str = ""  # where there are two first products, the one past which the activation comes; ``up`` is the other
    activation: str = "intermediate.intermediate_act_fn"  # where there is no gate
    down: str = "output.dense"
    ffn_norm: str = "output.LayerNorm"
    unbiased: tuple[str, ...] = ()  # how the names of modules without a bias end
    positions: bool = True  # a table of them, added to the words'
    token_types: bool = True
    counted_positions: bool = False  # from the count of ids != pad, not from the column
    rotary: Literal["", "halves", "neighbours"] = ""  # which pairs of a head's numbers positions turn
    theta: float = 0.0  # RoPE's base, where the config says nothing
    distances: str = ""  # the table of what is added to attention for a distance between two tokens
    distances_enter: tuple[str, int] = ("", 0)  # a layer's module, and which of its arguments that is
    task_types: bool = False  # a table of them, where the config's use_task_id says so; all texts are of the first
    projection: str = ""  # from the embeddings' own size to the layers', where there is one
    always_projects: bool = False  # of equal sizes too
    last_norm: str = ""  # past the last layer, where norms stand before sub-layers, not after the sums
    first_norm: bool = True  # whether such a norm stands before the first layer's attention too
    pooler: str = ""
    head: str = "linear"
    foreign_head: str = ""  # what transformers' classifier has where no head of ours does
    activations: tuple[str, ...] = ACTIVATIONS
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the config's
    masked: str = "encoder"  # the module whose second argument is the mask; none if keys must be as many as tokens
    reference: str = "eager"  # the attention that ours is compared with
    fixed: Mapping[str, Any] = field(default_factory=lambda: ENCODERS)  # of these keys no other value is supported


@dataclass(frozen=True, kw_only=True)
class EncoderSizes(Sizes):
    """``max_length`` are the rows of positions, of which a padding token may keep some."""

    pad_token_id: int = 0
    layer_norm_eps: float = 1e-12
    activation: str = "gelu"
    type_vocab_size: int = 2
    embedding_size: int
    num_hidden_groups: int
    task_type_vocab_size: int = 3


def sizes_of(config: Mapping[str, Any], layout: ModelLayout) -> EncoderSizes:
    for name, value in layout.fixed.items():
        if config.get(name) not in (None, value):
            raise UsageError(f"the config's {name} is {config[name]!r}; {config['model_type']} has {value}.")
    read = {
        "embedding_size": layout.projection,
        "num_hidden_groups": layout.shares_layers,
        "type_vocab_size": layout.token_types,
        "task_type_vocab_size": layout.task_types,
    }
    given = {**config, **{name: None for name, wanted in read.items() if not wanted}}  # anything may stand there
    keys = {**KEYS, "activation": "hidden_act", **layout.keys}
    width, n_layers = (config.get(keys.get(name, name)) for name in ("hidden_size", "n_layers"))
    silent = {"embedding_size": width, "num_hidden_groups": n_layers, **layout.defaults}
    sizes = read_sizes(EncoderSizes, given, silent, keys)
    d, heads = sizes.hidden_size, sizes.n_heads
    if layout.rotary and d % (2 * heads):
        raise UsageError(
            f"the config's num_attention_heads is {heads}, which does not divide its hidden_size {d} into heads of "
            "even width."
        )
    if d % heads:
        raise UsageError(f"the config's hidden_size is {d}, not a multiple of its {heads} num_attention_heads.")
    if config.get("head_dim") not in (None, d // heads):
        raise UsageError(f"the config's head_dim is {config['head_dim']!r}; supported: {d // heads}, a head's share.")
    if sizes.num_hidden_groups > sizes.n_layers:
        raise UsageError(
            f"the config's num_hidden_groups is {sizes.num_hidden_groups}, more than its {sizes.n_layers} layers."
        )
    offset = sizes.pad_token_id + 1 if layout.counted_positions else 0
    if sizes.max_length <= offset:
        raise UsageError(
            f"the config's pad_token_id is {sizes.pad_token_id}, which leaves none of its "
            f"{sizes.max_length} position embeddings."
        )
    require_known(layout.keys.get("activation", "activation"), sizes.activation, layout.activations)
    return sizes


def layer_paths(layout: ModelLayout, sizes: EncoderSizes) -> list[str]:
    """Each layer's, with its dot: those of a group are in one place (Lan et al., 2020, section 3.1)."""
    n, groups = sizes.n_layers, sizes.num_hidden_groups
    return [layout.layer.format(i=int(i / (n / groups))) for i in range(n)]  # in floats, as in transformers' code


def projection_of(layout: ModelLayout, sizes: EncoderSizes) -> str:
    """The module between the embeddings and the first layer; nothing where there is none."""
    return layout.projection if layout.always_projects or sizes.embedding_size != sizes.hidden_size else ""


def modules_of(layout: ModelLayout, sizes: EncoderSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path, shape of its weight): norms are [d], linear layers [out, in]."""
    d, f, width = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size
    if layout.embeddings_norm:
        yield layout.embeddings_norm, (width,)
    if projection := projection_of(layout, sizes):
        yield projection, (d, width)
    attending, first = Counter((layout.query, layout.key, layout.value)), Counter((layout.gate, layout.up))
    for i, layer in enumerate(dict.fromkeys(layer_paths(layout, sizes))):
        yield from ((layer + module, (parts * d, d)) for module, parts in attending.items())
        yield layer + layout.attention_output, (d, d)
        if i or layout.first_norm:
            yield layer + layout.attention_norm, (d,)
        yield from ((layer + module, (parts * f, d)) for module, parts in first.items() if module)
        yield layer + layout.down, (d, f)
        yield layer + layout.ffn_norm, (d,)
    if layout.last_norm:
        yield layout.last_norm, (d,)


def tensors_of(layout: ModelLayout, sizes: EncoderSizes) -> dict[str, tuple[int, ...]]:
    rows = {layout.words: sizes.vocab_size}
    rows |= {"embeddings.position_embeddings": sizes.max_length} if layout.positions else {}
    rows |= {"embeddings.token_type_embeddings": sizes.type_vocab_size} if layout.token_types else {}
    rows |= {"embeddings.task_type_embeddings": sizes.task_type_vocab_size} if layout.task_types else {}
    tensors: dict[str, tuple[int, ...]] = {f"{table}.weight": (n, sizes.embedding_size) for table, n in rows.items()}
    tensors |= {layout.distances: (BUCKETS, sizes.n_heads)} if layout.distances else {}
    for module, shape in modules_of(layout, sizes):
        tensors[f"{module}.weight"] = shape
        if not module.endswith(layout.unbiased):
            tensors[f"{module}.bias"] = shape[:1]
    return tensors


def sites_of(layout: ModelLayout, sizes: EncoderSizes) -> Iterator[Site]:
    d, width, positions = sizes.hidden_size, sizes.embedding_size, "embeddings.position_embeddings"
    yield Site(Role.WORD_EMBEDDINGS.value, Role.WORD_EMBEDDINGS, None, width, width, layout.words)
    if layout.positions:
        yield Site(Role.POSITION_EMBEDDINGS.value, Role.POSITION_EMBEDDINGS, None, width, width, positions)
    yield Site("embeddings", Role.EMBEDDINGS, None, d, d, projection_of(layout, sizes) or "embeddings")
    layers = layer_paths(layout, sizes)
    if layout.masked:  # those that must account for keys of no token
        yield Site(Role.POSITION_IDS.value, Role.POSITION_IDS, None, 1, 1, positions, is_input=True, shape=("tokens",))
        role, shape = Role.ATTENTION_BIAS, ("batch", 1, 1, "places")
        yield Site(role.value, role, None, 1, 1, layout.masked, shape=shape, argument=1)
        if layout.distances:
            module, argument = layout.distances_enter
            first, *others = (layer + module for layer in layers)
            role, across = Role.DISTANCE_BIAS, (sizes.n_heads, "queries", "places")
            yield Site(role.value, role, None, 1, 1, first, shape=across, argument=argument, others=tuple(others))
    for i in range(len(layers)):
        yield from _layer_sites(layout, sizes, layers, i)
    if norm := layout.last_norm:
        yield Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, norm, norm)
    yield from (Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN))


def _layer_sites(layout: ModelLayout, sizes: EncoderSizes, layers: Sequence[str], i: int) -> Iterator[Site]:
    d, f, layer, name = sizes.hidden_size, sizes.intermediate_size, layers[i], f"layer.{i}."
    call = (layers[:i].count(layer), layers.count(layer))
    before, below = bool(layout.last_norm), f"layer.{i - 1}.layer_output" if i else "embeddings"

    def at(role: Role, module: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        place = (layer + module).rstrip(".")
        return Site(name + role, role, i, inputs, outputs, place, place, call=call, **more)

    def products(modules: Mapping[Role, str], width: int, read: str) -> Iterator[Site]:
        for role, module in modules.items():
            roles = [other for other in modules if modules[other] == module]  # whose values one product gives
            first = roles.index(role) * width
            columns = (first, first + width) if len(roles) > 1 else None
            yield at(role, module, outputs=width, columns=columns, input=read)

    split = ("batch", sizes.n_heads, "places", d // sizes.n_heads)
    attention_norm, ffn_norm = (None if before else layer + norm for norm in (layout.attention_norm, layout.ffn_norm))
    read = below
    if before and (i or layout.first_norm):
        yield at(Role.ATTENTION_NORM, layout.attention_norm)
        read = name + Role.ATTENTION_NORM
    yield from products({Role.QUERY: layout.query, Role.KEY: layout.key, Role.VALUE: layout.value}, d, read)
    for role, module in ((Role.KEY_HEADS, layout.key), (Role.VALUE_HEADS, layout.value)) if layout.masked else ():
        yield Site(name + role, role, i, d, d, layer + module, shape=split, call=call)
    around: dict[str, Any] = {"residual": layer.rstrip("."), "input": f"{name}context", "added": below}
    yield at(Role.ATTENTION_OUTPUT, layout.attention_output, norm=attention_norm, **around)
    if before:
        yield at(Role.FFN_NORM, layout.ffn_norm)
    first = {Role.FFN_GATE: layout.gate, Role.FFN_GATED: layout.up} if layout.gate else {Role.FFN_UP: layout.up}
    yield from products(first, f, name + (Role.FFN_NORM if before else Role.ATTENTION_NORM))
    if layout.gate:  # what is gated may be no module's output, but is what one reads
        yield at(Role.FFN_ACTIVATION, layout.down, f, f, is_input=True)
    else:
        yield at(Role.FFN_ACTIVATION, layout.activation, f, f, input=name + Role.FFN_UP)
    summed = (layout.ffn_norm, "attention_output.sum") if before else (layout.up, Role.ATTENTION_NORM)
    around = {"residual": layer + summed[0], "input": name + Role.FFN_ACTIVATION, "added": name + summed[1]}
    yield at(Role.FFN_OUTPUT, layout.down, f, norm=ffn_norm, **around)
    yield at(Role.LAYER_OUTPUT, "" if before else layout.ffn_norm)

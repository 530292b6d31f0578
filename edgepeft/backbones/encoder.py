"""Encoders of BERT's kind: a row of module paths for each model type, an architecture of it, a builder of graphs.

Most name their parts as BERT does.  Post-LN or pre-LN; positions are learnt, rotary or a subclass's; feed-forwards may
be gated.  The graph runs on packed tokens: see ``packing.py``.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, f intermediate.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones.base import LEARNT, Architecture, Attention, Family, Role, Site, pooled_sites
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import KEYS, Sizes, read_sizes, require_known, rope_of
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing, Rotary, distance_bias, windows
from edgepeft.common.errors import UsageError

BUCKETS, FURTHEST = 32, 128  # of distances, in MPNet's code
# Of positions that are learnt; of no decoder.
ENCODERS: Mapping[str, Any] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


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


@dataclass(frozen=True)
class ModelLayout:
    """Where a model type keeps its parts: module paths, config keys, and what else differs.

    Query, key and value of one name are parts of one product, gate and up likewise.  What follows from these and the
    sizes of a config are tensors and sites.
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

    def sizes(self, config: Mapping[str, Any]) -> EncoderSizes:
        """What a config says, checked."""
        for name, value in self.fixed.items():
            if config.get(name) not in (None, value):
                raise UsageError(f"the config's {name} is {config[name]!r}; {config['model_type']} has {value}.")
        read = {
            "embedding_size": self.projection,
            "num_hidden_groups": self.shares_layers,
            "type_vocab_size": self.token_types,
            "task_type_vocab_size": self.task_types,
        }
        given = {**config, **{name: None for name, wanted in read.items() if not wanted}}  # anything may stand there
        keys = {**KEYS, "activation": "hidden_act", **self.keys}
        width, n_layers = (config.get(keys.get(name, name)) for name in ("hidden_size", "n_layers"))
        silent = {"embedding_size": width, "num_hidden_groups": n_layers, **self.defaults}
        sizes = read_sizes(EncoderSizes, given, silent, keys)
        d, heads = sizes.hidden_size, sizes.n_heads
        if self.rotary and d % (2 * heads):
            raise UsageError(
                f"the config's num_attention_heads is {heads}, which does not divide its hidden_size {d} into heads of "
                "even width."
            )
        if d % heads:
            raise UsageError(f"the config's hidden_size is {d}, not a multiple of its {heads} num_attention_heads.")
        if config.get("head_dim") not in (None, d // heads):
            raise UsageError(
                f"the config's head_dim is {config['head_dim']!r}; supported: {d // heads}, a head's share."
            )
        if sizes.num_hidden_groups > sizes.n_layers:
            raise UsageError(
                f"the config's num_hidden_groups is {sizes.num_hidden_groups}, more than its {sizes.n_layers} layers."
            )
        offset = sizes.pad_token_id + 1 if self.counted_positions else 0
        if sizes.max_length <= offset:
            raise UsageError(
                f"the config's pad_token_id is {sizes.pad_token_id}, which leaves none of its "
                f"{sizes.max_length} position embeddings."
            )
        require_known(keys["activation"], sizes.activation, self.activations)
        return sizes

    def _layer_paths(self, sizes: EncoderSizes) -> list[str]:
        """Each layer's, with its dot: those of a group are in one place (Lan et al., 2020, section 3.1)."""
        n, groups = sizes.n_layers, sizes.num_hidden_groups
        return [self.layer.format(i=int(i / (n / groups))) for i in range(n)]  # in floats, as in transformers' code

    def _projection(self, sizes: EncoderSizes) -> str:
        """The module between the embeddings and the first layer; nothing where there is none."""
        return self.projection if self.always_projects or sizes.embedding_size != sizes.hidden_size else ""

    def modules(self, sizes: EncoderSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(path, shape of its weight): norms are [d], linear layers [out, in]."""
        d, f, width = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size
        if self.embeddings_norm:
            yield self.embeddings_norm, (width,)
        if projection := self._projection(sizes):
            yield projection, (d, width)
        attending, first = Counter((self.query, self.key, self.value)), Counter((self.gate, self.up))
        for i, layer in enumerate(dict.fromkeys(self._layer_paths(sizes))):
            yield from ((layer + module, (parts * d, d)) for module, parts in attending.items())
            yield layer + self.attention_output, (d, d)
            if i or self.first_norm:
                yield layer + self.attention_norm, (d,)
            yield from ((layer + module, (parts * f, d)) for module, parts in first.items() if module)
            yield layer + self.down, (d, f)
            yield layer + self.ffn_norm, (d,)
        if self.last_norm:
            yield self.last_norm, (d,)

    def tensors(self, sizes: EncoderSizes) -> dict[str, tuple[int, ...]]:
        """Shapes by name."""
        rows = {self.words: sizes.vocab_size}
        rows |= {"embeddings.position_embeddings": sizes.max_length} if self.positions else {}
        rows |= {"embeddings.token_type_embeddings": sizes.type_vocab_size} if self.token_types else {}
        rows |= {"embeddings.task_type_embeddings": sizes.task_type_vocab_size} if self.task_types else {}
        tensors: dict[str, tuple[int, ...]] = {f"{name}.weight": (n, sizes.embedding_size) for name, n in rows.items()}
        tensors |= {self.distances: (BUCKETS, sizes.n_heads)} if self.distances else {}
        for module, shape in self.modules(sizes):
            tensors[f"{module}.weight"] = shape
            if not module.endswith(self.unbiased):
                tensors[f"{module}.bias"] = shape[:1]
        return tensors

    def sites(self, sizes: EncoderSizes) -> Iterator[Site]:
        """In the order of the forward pass."""
        d, width, positions = sizes.hidden_size, sizes.embedding_size, "embeddings.position_embeddings"
        yield Site(Role.WORD_EMBEDDINGS.value, Role.WORD_EMBEDDINGS, None, width, width, self.words)
        if self.positions:
            yield Site(Role.POSITION_EMBEDDINGS.value, Role.POSITION_EMBEDDINGS, None, width, width, positions)
        yield Site("embeddings", Role.EMBEDDINGS, None, d, d, self._projection(sizes) or "embeddings")
        layers = self._layer_paths(sizes)
        if self.masked:  # those that must account for keys of no token
            yield Site(
                Role.POSITION_IDS.value, Role.POSITION_IDS, None, 1, 1, positions, is_input=True, shape=("tokens",)
            )
            role, shape = Role.ATTENTION_BIAS, ("batch", 1, 1, "places")
            yield Site(role.value, role, None, 1, 1, self.masked, shape=shape, argument=1)
            if self.distances:
                module, argument = self.distances_enter
                first, *others = (layer + module for layer in layers)
                role, across = Role.DISTANCE_BIAS, (sizes.n_heads, "queries", "places")
                yield Site(role.value, role, None, 1, 1, first, shape=across, argument=argument, others=tuple(others))
        for i in range(len(layers)):
            yield from self._layer_sites(sizes, layers, i)
        if norm := self.last_norm:
            yield Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, norm, norm)
        yield from pooled_sites(d)

    def _layer_sites(self, sizes: EncoderSizes, layers: Sequence[str], i: int) -> Iterator[Site]:
        d, f, layer, name = sizes.hidden_size, sizes.intermediate_size, layers[i], f"layer.{i}."
        call = (layers[:i].count(layer), layers.count(layer))
        before, below = bool(self.last_norm), f"layer.{i - 1}.layer_output" if i else "embeddings"

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
        attention_norm, ffn_norm = (None if before else layer + norm for norm in (self.attention_norm, self.ffn_norm))
        read = below
        if before and (i or self.first_norm):
            yield at(Role.ATTENTION_NORM, self.attention_norm)
            read = name + Role.ATTENTION_NORM
        yield from products({Role.QUERY: self.query, Role.KEY: self.key, Role.VALUE: self.value}, d, read)
        for role, module in ((Role.KEY_HEADS, self.key), (Role.VALUE_HEADS, self.value)) if self.masked else ():
            yield Site(name + role, role, i, d, d, layer + module, shape=split, call=call)
        around: dict[str, Any] = {"residual": layer.rstrip("."), "input": f"{name}context", "added": below}
        yield at(Role.ATTENTION_OUTPUT, self.attention_output, norm=attention_norm, **around)
        if before:
            yield at(Role.FFN_NORM, self.ffn_norm)
        first = {Role.FFN_GATE: self.gate, Role.FFN_GATED: self.up} if self.gate else {Role.FFN_UP: self.up}
        yield from products(first, f, name + (Role.FFN_NORM if before else Role.ATTENTION_NORM))
        if self.gate:  # what is gated may be no module's output, but is what one reads
            yield at(Role.FFN_ACTIVATION, self.down, f, f, is_input=True)
        else:
            yield at(Role.FFN_ACTIVATION, self.activation, f, f, input=name + Role.FFN_UP)
        summed = (self.ffn_norm, "attention_output.sum") if before else (self.up, Role.ATTENTION_NORM)
        around = {"residual": layer + summed[0], "input": name + Role.FFN_ACTIVATION, "added": name + summed[1]}
        yield at(Role.FFN_OUTPUT, self.down, f, norm=ffn_norm, **around)
        yield at(Role.LAYER_OUTPUT, "" if before else self.ffn_norm)


class EncoderBuilder:
    """Emits one model; the methods follow the data from token ids to pooled values."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint, layout: ModelLayout) -> None:
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
            bias = distance_bias(self.emit, table, apart, FURTHEST, both_ways=True, output=name)
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
        if not layout.rotary:
            return ()
        return (Attention(rope_of(config, default=layout.theta)["rope_theta"], None),) * n_layers

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        layout = self.layout_of(config)
        sizes = layout.sizes(config)
        d, offset = sizes.hidden_size, sizes.pad_token_id + 1 if layout.counted_positions else 0
        token_types = ("token_type_ids",) if layout.token_types and sizes.type_vocab_size > 1 else ()
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            **{**sizes.common, "max_length": sizes.max_length - offset},
            sites=tuple(layout.sites(sizes)),
            tensors=layout.tensors(sizes),
            pooler={f"{layout.pooler}.weight": (d, d), f"{layout.pooler}.bias": (d,)} if layout.pooler else {},
            norms=tuple(module for module, shape in layout.modules(sizes) if len(shape) == 1),
            inputs=("input_ids", "attention_mask", *token_types),
            head=layout.head,
            prefix=layout.prefix,
            words=f"{layout.words}.weight",
            attention=self.attention_of(config, sizes.n_layers),
            builder=partial(self.builder, layout=self.layouts[config["model_type"]]),
            foreign_head=layout.foreign_head,
            reference=layout.reference,
        )

"""Decoder-only models of Llama's kind (Touvron et al., 2023, arXiv:2302.13971).

SmolLM2, Llama 3, Mistral, Qwen2.5, Qwen3 and Gemma 3 are rows of a table: RMSNorm before sub-layers, rotary positions,
keys and values shared by groups of heads (Ainslie et al., 2023, arXiv:2305.13245), gated feed-forwards.  In terms of
``text.py`` the prompt's pass is the "encoder" and a step the "decoder", of the same layers:

    encoder   the prompt on packed tokens -> keys and values of each layer
    decoder   the token written last, which attends to the prompt's keys and to its own text's, by one softmax

A text begins with its prompt's last token, so the first step computes that token's keys again and ``CROSS_BIAS`` hides
the prompt's.  The training graph is one pass over the prompt and its target.

Letters: B rows, S their padded length, T real tokens, N texts, L tokens written, d hidden, f intermediate, h heads, k
heads of keys, g = h / k, e a head's width, v vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones import text
from edgepeft.backbones.base import (
    LINEAR_ROLES,
    OUTPUT_LAYER,
    PACKED_INDICES,
    Architecture,
    Attention,
    Decoder,
    Family,
    PackedIndex,
    Role,
    Site,
    pooled_sites,
)
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import GLOBAL, LOCAL, Sizes, checked, layer_types, read_sizes, require_known
from edgepeft.backbones.packing import Packing, frequencies, rotation
from edgepeft.backbones.pooling import EMBEDDINGS, Pooling
from edgepeft.common.errors import UsageError

_WORDS = "model.embed_tokens.weight"
_ATTENDING = (Role.QUERY, Role.KEY, Role.VALUE)
_LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_Attend = Callable[[int, str, str, str, str], str]  # layer; query, key and value (., . e); output -> (., h e)


@dataclass(frozen=True, kw_only=True)
class _Sizes(Sizes):
    max_length: int = 2048
    layer_norm_eps: float = 1e-6
    num_key_value_heads: int  # as many as others, or fewer
    head_dim: int
    eos_token_id: int = 2


@dataclass(frozen=True)
class Layout:
    """How a model type differs from Llama; its sizes, tensors and sites."""

    # Before and past attention, before and past the feed-forward.
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    biased: tuple[str, ...] = ()  # the linear layers with a bias whatever the config says
    head_norms: int = 0  # queries and keys are normed head by head, in transformers with heads on that axis
    plus_one: bool = False  # norms multiply by 1 + weight
    scaled: bool = False  # embeddings are multiplied by the root of d
    activation: tuple[str, str] = ("hidden_act", "silu")  # the config's key, and what is taken where that is silent
    local_theta: bool = False  # layers with a window have a base of their own

    def sizes(self, config: Mapping[str, Any]) -> _Sizes:
        """What the config says, checked."""
        heads = checked("num_attention_heads", config.get("num_attention_heads"))
        e = checked("hidden_size", config.get("hidden_size")) // heads
        silent = {"num_key_value_heads": heads, "head_dim": e, "activation": self.activation[1]}
        keys = {"layer_norm_eps": "rms_norm_eps", "activation": self.activation[0]}
        ends = config.get("eos_token_id")
        given = {**config, "eos_token_id": ends[0] if isinstance(ends, list) and ends else ends}
        silent["pad_token_id"] = given["eos_token_id"] if given["eos_token_id"] is not None else 0
        sizes = read_sizes(_Sizes, given, silent, keys)
        require_known(self.activation[0], sizes.activation, ("silu", "gelu", "gelu_pytorch_tanh"))
        if sizes.head_dim % 2:
            raise UsageError(f"the config's head_dim is {sizes.head_dim}; rotary positions turn pairs of numbers.")
        if heads % sizes.num_key_value_heads:
            raise UsageError(
                f"the config's num_attention_heads is {heads}, and num_key_value_heads {sizes.num_key_value_heads}, "
                "which must divide it."
            )
        scalar, e = config.get("query_pre_attn_scalar"), sizes.head_dim
        if scalar not in (None, e):
            raise UsageError(f"the config's query_pre_attn_scalar is {scalar!r}; supported: head_dim, {e}.")
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(key) is not None:
                raise UsageError(f"the config's {key} is {config[key]!r}; logits are not capped here.")
        return sizes

    def attention(self, config: Mapping[str, Any], sizes: _Sizes) -> tuple[Attention, ...]:
        """Each layer's."""
        n, e = sizes.n_layers, sizes.head_dim
        whole = rotation(config, e, kind=GLOBAL if self.local_theta else "")
        if not self.local_theta:
            return (whole,) * n
        within = rotation({**config, "rope_scaling": None}, e, "rope_local_base_freq", LOCAL)
        pattern = checked("sliding_window_pattern", config.get("sliding_window_pattern", 6))
        types = layer_types(config, [LOCAL if (i + 1) % pattern else GLOBAL for i in range(n)])
        return tuple(within if kind == LOCAL else whole for kind in types)

    def tensors(self, config: Mapping[str, Any], sizes: _Sizes, sites: Iterable[Site]) -> dict[str, tuple[int, ...]]:
        """Shapes by name."""
        d, e = sizes.hidden_size, sizes.head_dim
        linear = [site for site in sites if site.role in LINEAR_ROLES]
        biased = self.biased or (_LINEAR if config.get("attention_bias") else ())
        biased += _FEED_FORWARD if config.get("mlp_bias") else ()
        table: tuple[int, ...] = (sizes.vocab_size, d)
        tied = config.get("tie_word_embeddings", self.scaled)  # transformers' default: Gemma's are, the others' not
        tensors = {_WORDS: table} | ({} if tied else {OUTPUT_LAYER: table})
        for i in range(sizes.n_layers):
            layer = f"model.layers.{i}."
            for site in (site for site in linear if site.layer == i):
                tensors[f"{site.module}.weight"] = (site.out_features, site.in_features)
                if site.module.endswith(biased):
                    tensors[f"{site.module}.bias"] = (site.out_features,)
            tensors |= {f"{layer}{norm}.weight": (d,) for norm in filter(None, self.norms)}
            if self.head_norms:
                tensors |= {f"{layer}self_attn.{part}_norm.weight": (e,) for part in "qk"}
        return {**tensors, "model.norm.weight": (d,)}

    def sites(self, sizes: _Sizes) -> Iterator[Site]:
        """In the order of the forward pass."""
        d, f, e = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
        wide, narrow = sizes.n_heads * e, sizes.num_key_value_heads * e
        yield Site("word_embeddings", Role.WORD_EMBEDDINGS, None, d, d, "model.layers.0", is_input=True)
        for i in range(sizes.n_layers):
            layer, name = f"model.layers.{i}", f"layer.{i}."

            def at(role: Role, module: str, widths: tuple[int, int], **more: Any) -> Site:
                place = f"{layer}.{module}".rstrip(".")  # noqa: B023
                return Site(name + role, role, i, *widths, place, place, **more)  # noqa: B023

            yield at(Role.ATTENTION_NORM, self.norms[0], (d, d))
            for role, module, width in zip(_ATTENDING, _LINEAR, (wide, narrow, narrow), strict=False):
                yield at(role, module, (d, width), input=name + Role.ATTENTION_NORM)
            # Where no norm stands between, a layer's keys and values are what its products give.
            key, value = ("self_attn.k_norm", "") if self.head_norms else (_LINEAR[1], name + Role.KEY)
            states = {
                Role.KEY_STATES: (key, self.head_norms, value),
                Role.VALUE_STATES: (_LINEAR[2], 0, name + Role.VALUE),
            }
            for role, (module, heads, value) in states.items():
                yield Site(name + role, role, i, narrow, narrow, f"{layer}.{module}", heads=heads, value=value)
            below = f"layer.{i - 1}.layer_output" if i else "word_embeddings"
            around = {"residual": layer, "input": f"{name}context", "added": below}
            yield at(Role.ATTENTION_OUTPUT, _LINEAR[3], (wide, d), **around)
            yield at(Role.FFN_NORM, self.norms[2], (d, d))
            for role, module in zip((Role.FFN_GATE, Role.FFN_GATED), _FEED_FORWARD, strict=False):
                yield at(role, module, (d, f), input=name + Role.FFN_NORM)
            yield at(Role.FFN_ACTIVATION, _FEED_FORWARD[2], (f, f), is_input=True)
            around = {"residual": f"{layer}.{self.norms[2]}", "added": f"{name}attention_output.sum"}
            yield at(Role.FFN_OUTPUT, _FEED_FORWARD[2], (f, d), input=name + Role.FFN_ACTIVATION, **around)
            yield at(Role.LAYER_OUTPUT, "", (d, d))
        yield Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, "model.norm", "model.norm")
        yield from pooled_sites(d, (*EMBEDDINGS, Pooling.LAST))
        yield Site(Role.POOLED_LABELS.value, Role.POOLED_LABELS, None, d, sizes.vocab_size, reads="lm_head")


_LAYOUTS: Mapping[str, Layout] = {
    "llama": Layout(),  # SmolLM2 too
    "mistral": Layout(),
    "qwen2": Layout(biased=_LINEAR[:3]),
    "qwen3": Layout(head_norms=2),
    "gemma3_text": Layout(
        ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        head_norms=1,
        plus_one=True,
        scaled=True,
        local_theta=True,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
    ),
}


class _Builder(text.TextBuilder):
    """Emits one model."""

    rows: ClassVar[str] = "texts"
    packing: Packing
    causal: str  # (B, 1, S, S), what is added to scores: 0, or the lowest number for padding and what comes later

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        super().__init__(architecture, checkpoint)
        self.layout, self.depth = _LAYOUTS[architecture.model_type], architecture.n_layers
        self.plus_one = self.layout.plus_one
        rows = {part: architecture.tensors[f"model.layers.0.self_attn.{part}_proj.weight"][0] for part in "qk"}
        self.width = rows["q"] // architecture.n_heads
        self.heads, self.groups = rows["k"] // self.width, rows["q"] // rows["k"]
        self.turns: dict[Attention, tuple[str, str]] = {}  # cosines and sines of each token, (., 1, e)

    def model(self) -> onnx.ModelProto:
        hidden, d = self._read("input_ids", "attention_mask", self._attend_at_once), self.arch.hidden_size
        last = Pooling.LAST.emit(self.packing, hidden)
        return self.emit.model(self.emit.rows(), self.packing.outputs(hidden, d, last))

    def teaching(self) -> onnx.ModelProto:
        """(B, S) and what stands before each of n target tokens, (B, n), the first of them no matter -> (B, n, v)."""
        op, ints = self.emit.op, self.emit.ints
        target = op("Slice", text.BEFORE, ints(1), ints(np.iinfo(np.int64).max), ints(1))
        ids = op("Concat", "input_ids", target, axis=1)
        one = self.emit.constant("one_row", [1], np.int64)
        mask = op("Concat", "attention_mask", op("Expand", one, op("Shape", target)), axis=1)
        hidden = self._read(ids, mask, self._attend_at_once)
        real = op("Cast", op("Cast", "attention_mask", to=TensorProto.BOOL), to=TensorProto.INT64)
        first = op("Add", op("ReduceSum", real, ints(1)), op("Unsqueeze", self.packing.starts, ints(1)))  # (B, 1)
        n = op("Squeeze", op("Shape", text.BEFORE, start=1))
        places = op("Range", self.emit.constant("minus_one", -1, np.int64), op("Sub", n, self.packing.one), "one")
        return self._taught(op("Gather", hidden, op("Reshape", op("Add", first, places), ints(-1))))  # of (B n, d)

    def encoder(self) -> onnx.ModelProto:
        """(B, S) -> the keys and values of each layer, and what hides padding and each row's last token."""
        op, ints = self.emit.op, self.emit.ints

        def attend(i: int, query: str, key: str, value: str, output: str) -> str:
            for known, cache in zip(self._known(key, value), text.caches(text.CROSS, i), strict=True):
                op("Identity", known, output=cache)
            return self._attend_at_once(i, query, key, value, output)

        self._read("input_ids", "attention_mask", attend)
        packing = self.packing
        last = op("Unsqueeze", op("Gather", packing.column, packing.ends()), ints(1))
        columns = op("Range", packing.zero, packing.length, packing.one)
        bias = op("Where", op("Less", columns, last), "none", "lowest")  # (B, S)
        op("Add", op("Unsqueeze", bias, ints(1, 2)), packing.mask_bias, output=text.CROSS_BIAS)
        return self.emit.model(self.emit.rows(), self._cross())

    def decoder(self) -> onnx.ModelProto:
        """One token more of each of N texts: their last tokens, and whose caches they go on with, -> (N, v)."""
        op, ints, constant = self.emit.op, self.emit.ints, self.emit.constant
        zero = constant("zero", 0, np.int64)
        op("Identity", op("Shape", text.caches(text.PAST, 0)[0], start=2, end=3), output=text.CACHED)
        shown = op("Cast", op("Equal", text.CROSS_BIAS, constant("nothing", 0, np.float32)), to=TensorProto.INT64)
        read = op("ReduceSum", shown, ints(1, 2, 3), keepdims=0)  # (N)
        places = op("Add", read, text.CACHED, output=PACKED_INDICES[PackedIndex.POSITION])
        texts = op("Range", zero, op("Squeeze", op("Shape", text.IDS)), constant("one", 1, np.int64))
        op("Identity", texts, output=PACKED_INDICES[PackedIndex.ROW])
        op("Identity", texts, output=PACKED_INDICES[PackedIndex.FIRST_TOKEN])
        self._turn(places)
        return self._stepped(self._layers(self._embedded(text.IDS), self._attend_step))

    def _read(self, ids: str, mask: str, attend: _Attend) -> str:
        """Rows of tokens -> (T, d), past the last norm."""
        op, ints = self.emit.op, self.emit.ints
        self.packing = packing = Packing(self.emit, ids, mask)
        self._turn(PACKED_INDICES[PackedIndex.POSITION])
        later = op("Greater", packing.distances(), packing.zero)
        bias = op("Add", op("Where", later, "lowest", "none"), packing.mask_bias)  # (B, 1, S, S)
        self.causal = op("Unsqueeze", bias, ints(1))  # (B, 1, 1, S, S), of the heads of a group
        return self._layers(self._embedded(packing.packed(ids)), attend)

    def _embedded(self, ids: str) -> str:
        op, name = self.emit.op, "word_embeddings"
        rows = op("Gather", self.emit.weight(_WORDS), ids, output="" if self.layout.scaled else name)
        if not self.layout.scaled:
            return rows
        factor = self.emit.constant("embeddings_scale", np.float32(self.arch.hidden_size**0.5), np.float32)
        return op("Mul", rows, factor, output=name)

    def _turn(self, places: str) -> None:
        """Cosines and sines of each kind of layer at these places, int64 (.)."""
        op, ints = self.emit.op, self.emit.ints
        of_tokens = op("Unsqueeze", op("Cast", places, to=TensorProto.FLOAT), ints(1))
        for number, kind in enumerate(dict.fromkeys(self.arch.attention)):
            w = np.array(kind.frequencies or frequencies(kind.theta, self.width), np.float32)
            angles = op("Mul", of_tokens, self.emit.constant(f"frequencies_{number}", w, np.float32))
            cosine, sine = op("Cos", angles), op("Sin", angles)
            halves = ((cosine, cosine), (op("Neg", sine), sine))
            tables = (op("Unsqueeze", op("Concat", *both, axis=1), ints(1)) for both in halves)
            self.turns[kind] = (next(tables), next(tables))

    def _layers(self, hidden: str, attend: _Attend) -> str:
        """(., d) -> (., d), past the last norm."""
        op, linear = self.emit.op, self.emit.linear
        before_attention, past_attention, before_ffn, past_ffn = self.layout.norms
        for i in range(self.arch.n_layers):
            module, name = f"model.layers.{i}.", f"layer.{i}."
            normed = self.norm(module + before_attention, hidden, name + "attention_norm")
            of = f"{module}self_attn."
            query, key, value = (linear(f"{of}{role[0]}_proj", normed, name + role) for role in _ATTENDING)
            query = self._turned(i, query, f"{of}q_norm", self.arch.n_heads)
            query = op("Mul", query, self.emit.constant("query_scale", self.width**-0.5, np.float32))
            states = f"{name}{Role.KEY_STATES}" if self.layout.head_norms else ""
            key = self._turned(i, key, f"{of}k_norm", self.heads, states)
            context = attend(i, query, key, value, name + "context")
            attended = linear(f"{of}o_proj", context, name + "attention_output")
            if past_attention:
                attended = self.norm(module + past_attention, attended)
            hidden = op("Add", attended, hidden, output=name + "attention_output.sum")
            normed = self.norm(module + before_ffn, hidden, name + "ffn_norm")
            up, down, gate = (f"{module}mlp.{part}_proj" for part in ("up", "down", "gate"))
            down = self.emit.feed_forward(normed, name, up=up, down=down, gate=gate)
            if past_ffn:
                down = self.norm(module + past_ffn, down)
            hidden = op("Add", down, hidden, output=name + "layer_output")
        return self.norm("model.norm", hidden, Role.STACK_OUTPUT.value)

    def _turned(self, i: int, value: str, norm: str, heads: int, output: str = "") -> str:
        """(., heads e) -> (., heads, e), normed where they are, ``output`` then, and turned by each token's place."""
        op, ints, e = self.emit.op, self.emit.ints, self.width
        value = op("Reshape", value, ints(-1, heads, e))
        if self.layout.head_norms:
            value = self.norm(norm, value)
        if output:
            value = op("Reshape", op("Reshape", value, ints(-1, heads * e), output=output), ints(-1, heads, e))
        cosine, sine = self.turns[self.arch.attention[i]]
        pairs = op("Gather", op("Reshape", value, ints(-1, heads, 2, e // 2)), ints(1, 0), axis=2)
        swapped = op("Reshape", pairs, ints(-1, heads, e))  # the sine has its sign
        return op("Add", op("Mul", value, cosine), op("Mul", swapped, sine))

    def _padded(self, value: str, *heads: int) -> str:
        """(T, heads e) -> (B, S, heads, e)."""
        op, packing = self.emit.op, self.packing
        whole = op("Concat", packing.shape, self.emit.ints(*heads, self.width), axis=0)
        return op("Reshape", op("Gather", value, packing.place), whole)

    def _known(self, *values: str) -> list[str]:
        """(T, k, e) each -> (B, k, S, e) each."""
        return [self.emit.op("Transpose", self._padded(each, self.heads), perm=[0, 2, 1, 3]) for each in values]

    def _attend_at_once(self, i: int, query: str, key: str, value: str, output: str) -> str:
        """Attend from all tokens of each row: (T, h e)."""
        op, ints = self.emit.op, self.emit.ints
        keys, values = (op("Unsqueeze", each, ints(2)) for each in self._known(key, value))  # (B, k, 1, S, e)
        queries = op("Transpose", self._padded(query, self.heads, self.groups), perm=[0, 2, 3, 1, 4])  # (B, k, g, S, e)
        scores = op("Add", op("MatMul", queries, op("Transpose", keys, perm=[0, 1, 2, 4, 3])), self.causal)
        context = op("MatMul", op("Softmax", scores, axis=-1), values)
        rows = op("Reshape", op("Transpose", context, perm=[0, 3, 1, 2, 4]), ints(-1, self.width * self.arch.n_heads))
        return op("Gather", rows, self.packing.index, output=output)

    def _attend_step(self, i: int, query: str, key: str, value: str, output: str) -> str:
        """Attend from one token of each text to its prompt and to what was written: (N, h e)."""
        op, ints = self.emit.op, self.emit.ints
        k, g, e = self.heads, self.groups, self.width
        known, (keys, values) = self._grown(i, key, value), text.caches(text.CROSS, i)
        query = op("Reshape", query, ints(-1, k, g, e))
        of_prompt, of_text = (
            op("MatMul", query, op("Transpose", each, perm=[0, 1, 3, 2])) for each in (keys, known[0])
        )
        scores = op("Concat", op("Add", of_prompt, text.CROSS_BIAS), of_text, axis=3)
        whole = op("Softmax", scores, axis=-1)  # (N, k, g, S + L + 1)
        length = op("Shape", text.CROSS_BIAS, start=3, end=4)
        of_prompt = op("Slice", whole, ints(0), length, ints(3))
        of_text = op("Slice", whole, length, ints(np.iinfo(np.int64).max), ints(3))
        context = op("Add", op("MatMul", of_prompt, values), op("MatMul", of_text, known[1]))  # (N, k, g, e)
        return op("Reshape", context, ints(-1, k * g * e), output=output)


class Llama(Family):
    """Decoders alone, by the whole model's names: ``model.layers.0...`` and ``lm_head``."""

    name = "llama"
    model_types = tuple(_LAYOUTS)
    limits = (
        "They write text, or a linear layer reads the last token; tags, spans and embeddings are an encoder's.",
        "Where layers see a window, prompt and answer together may be as long as the window.",
        "The rope_type is default, linear or llama3; logits that are capped are refused.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        layout = _LAYOUTS[config["model_type"]]
        sites = tuple(layout.sites(sizes := layout.sizes(config)))
        tensors = layout.tensors(config, sizes, sites)
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        longest = sizes.max_length if window is None else min(sizes.max_length, checked("sliding_window", window))
        linear = [n.removesuffix(".weight") for n in tensors if n.endswith("_proj.weight")]
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            **{**sizes.common, "max_length": longest},
            sites=sites,
            tensors=tensors,
            norms=tuple(n.removesuffix(".weight") for n, shape in tensors.items() if len(shape) == 1 and "norm" in n),
            head="score",
            absent_biases={f"{n}.bias": tensors[f"{n}.weight"][:1] for n in linear if f"{n}.bias" not in tensors},
            words=_WORDS,
            decoder=Decoder(None, sizes.eos_token_id, 1.0, 0),
            pooling=Pooling.LAST,
            attention=layout.attention(config, sizes),
            weights_dtype="int8",  # a step's time is that of reading the weights
            builder=_Builder,
            reference="sdpa",  # the eager one's softmax is of float32: in float64 padding in front gives no number
        )


FAMILY = Llama()

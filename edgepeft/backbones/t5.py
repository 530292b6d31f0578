"""T5 (Raffel et al., 2020, arXiv:1910.10683): an encoder and a decoder of pre-LN layers, without biases.

Labels that are known are scored, not generated: the graph is the encoder on packed tokens, and one pass of the decoder
over the trie of the labels' tokens (``trie.py``), which the task brings.  Where nothing reads the decoder it is left
out.  Text takes two more graphs (``text.py``): the encoder with the keys and values for cross-attention, and one step
of the decoder with its own cache; and a third for training.
Relative positions are in buckets, the same in all layers of a stack; norms are RMSNorm.

Letters: B batch, S padded length, T real tokens, n nodes of the trie, beams of a row or tokens of a target, e edges of
the trie, d hidden, h heads, i all heads together, f intermediate, v vocabulary, L tokens that were written before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones import text
from edgepeft.backbones.base import LINEAR_ROLES, OUTPUT_LAYER, Architecture, Decoder, Family, Role, Site, pooled_sites
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import Sizes, read_sizes, require_known
from edgepeft.backbones.packing import Packing, distance_bias
from edgepeft.backbones.trie import EDGES, LABEL_VALUES, SEES, TOKENS
from edgepeft.common.errors import UsageError

_CROSS = (Role.CROSS_QUERY, Role.CROSS_KEY, Role.CROSS_VALUE, Role.CROSS_ATTENTION_OUTPUT)
_ENCODER = {"SelfAttention": "layer.0", "DenseReluDense": "layer.1"}
_DECODER = {"SelfAttention": "layer.0", "EncDecAttention": "layer.1", "DenseReluDense": "layer.2"}
_DISTANCES = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_MAX_BUCKETS, _FURTHEST = 256, 400  # so that a table of distances is a few hundred bytes; all T5 have 32 and 128


_KEYS = {
    "hidden_size": "d_model",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_length": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "activation": "feed_forward_proj",
}


# What differs where a config is silent.
_MODEL_TYPES: dict[str, dict[str, Any]] = {
    "t5": {},  # T5 1.1, Flan-T5 and byT5 too
    "mt5": {"activation": "gated-gelu", "tie_word_embeddings": False},
}


@dataclass(frozen=True, kw_only=True)
class _Sizes(Sizes):
    """``n_layers`` are the encoder's."""

    max_length: int = 512
    pad_token_id: int = 0
    layer_norm_eps: float = 1e-6
    activation: str = "relu"
    d_kv: int
    num_decoder_layers: int
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    eos_token_id: int = 1
    decoder_start_token_id: int

    @property
    def inner(self) -> int:
        """Width of queries, keys and values."""
        return self.n_heads * self.d_kv

    @property
    def up(self) -> tuple[str, ...]:
        """The feed-forward's first linear layers; a gate is a second one."""
        return ("wi_0", "wi_1") if self.activation.startswith("gated-") else ("wi",)

    @property
    def stacks(self) -> tuple[tuple[str, int, dict[str, str]], ...]:
        """(module path, layers, sub-layer -> its path in a layer)."""
        return ("encoder", self.n_layers, _ENCODER), ("decoder", self.num_decoder_layers, _DECODER)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """What a config says, checked."""
        silent = {**_MODEL_TYPES[config["model_type"]], "num_decoder_layers": config.get("num_layers")}
        silent["decoder_start_token_id"] = config.get("pad_token_id", cls.pad_token_id)
        sizes = read_sizes(cls, config, silent, _KEYS)
        require_known("feed_forward_proj", sizes.activation, ("relu", "gelu", "gated-gelu", "gated-relu"))
        n_buckets, furthest = sizes.relative_attention_num_buckets, sizes.relative_attention_max_distance
        if not n_buckets // 2 < furthest <= _FURTHEST:
            raise UsageError(
                f"the config's relative_attention_max_distance is {furthest}; supported with its {n_buckets} "
                f"relative_attention_num_buckets: more than {n_buckets // 2}, which fill these, and at most "
                f"{_FURTHEST}."
            )
        if n_buckets > _MAX_BUCKETS:
            raise UsageError(f"the config's relative_attention_num_buckets is {n_buckets}; at most {_MAX_BUCKETS}.")
        return sizes

    def sites(self) -> Iterator[Site]:
        """In the order of the forward pass."""
        d = self.hidden_size
        yield Site("word_embeddings", Role.WORD_EMBEDDINGS, None, d, d, "encoder.block.0", is_input=True)
        yield Site("decoder.embeddings", Role.EMBEDDINGS, None, d, d, "decoder.block.0", is_input=True)
        for stack, count, parts in self.stacks:
            yield from (site for i in range(count) for site in self._layer_sites(stack, i, parts))
            norm = f"{stack}.final_layer_norm"
            yield Site(f"{stack}.{Role.STACK_OUTPUT}", Role.STACK_OUTPUT, None, d, d, norm, norm)
        yield from pooled_sites(d)
        yield Site(Role.POOLED_LABELS.value, Role.POOLED_LABELS, None, d, self.vocab_size, reads="lm_head")

    def _layer_sites(self, stack: str, i: int, parts: Mapping[str, str]) -> Iterator[Site]:
        d, inner, f, name = self.hidden_size, self.inner, self.intermediate_size, f"{stack}.layer.{i}."
        below = "decoder.embeddings" if stack == "decoder" else "word_embeddings"
        added = f"{stack}.layer.{i - 1}.layer_output" if i else below  # to a sub-layer's output, in the graph

        def at(role: Role, module: str, widths: tuple[int, int], residual: str = "", **more: Any) -> Site:
            sums = {"residual": residual, "added": added} if residual else {}
            return Site(name + role, role, i, *widths, module, **{"reads": module, **sums, **more})

        for part, place in parts.items():
            around = f"{stack}.block.{i}.{place}"
            within = f"{around}.{part}."
            if part == "DenseReluDense":
                yield at(Role.FFN_NORM, f"{around}.layer_norm", (d, d))
                first = (Role.FFN_UP,) if len(self.up) == 1 else (Role.FFN_GATE, Role.FFN_GATED)
                for role, up in zip(first, self.up, strict=True):
                    yield at(role, within + up, (d, f), input=name + Role.FFN_NORM)
                yield at(Role.FFN_ACTIVATION, within + "dropout", (f, f), reads=within + "act")
                yield at(Role.FFN_OUTPUT, within + "wo", (f, d), around, input=name + Role.FFN_ACTIVATION)
                yield at(Role.LAYER_OUTPUT, around, (d, d))
            else:
                cross = "cross_" if part == "EncDecAttention" else ""
                norm, output = Role(cross + Role.ATTENTION_NORM), Role(cross + Role.ATTENTION_OUTPUT)
                yield at(norm, f"{around}.layer_norm", (d, d))
                for role, linear in ((Role.QUERY, "q"), (Role.KEY, "k"), (Role.VALUE, "v")):
                    read = "encoder.output" if cross and role is not Role.QUERY else name + norm
                    yield at(Role(cross + role), within + linear, (d, inner), input=read)
                yield at(output, within + "o", (inner, d), around, input=f"{name}{cross}context")
                added = f"{name}{output}.sum"


class _Builder(text.TextBuilder):
    """Emits one model; the methods follow the data from token ids to the labels' edges, or to the next token."""

    packing: Packing  # of the encoder's tokens

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        super().__init__(architecture, checkpoint)
        assert architecture.decoder is not None
        self.written, self.depth, self.heads = architecture.decoder, self._layers("decoder"), architecture.n_heads
        self.inner = architecture.tensors["encoder.block.0.layer.0.SelfAttention.q.weight"][0]
        self.width = self.inner // self.heads
        self.gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in architecture.tensors

    def model(self) -> onnx.ModelProto:
        """The graph that scores labels; without a task there are none, and the trie is a single node."""
        encoded, (op, ints) = self._encoder(), (self.emit.op, self.emit.ints)
        outputs = self.packing.outputs(encoded, self.arch.hidden_size)
        root = {TOKENS: [self.written.start_token_id], SEES: [[1]], EDGES: [self.written.end_token_id]}
        for name, value in root.items():
            op("Identity", self.emit.constant(f"{name}.none", value, np.int64), output=name)
        batch = op("Slice", self.packing.shape, ints(0), ints(1))
        each = op("Concat", batch, op("Shape", TOKENS), axis=0)
        tokens = op("Reshape", op("Expand", TOKENS, each), ints(-1))  # (B n)
        hidden = op("Gather", self.emit.weight("shared.weight"), tokens, output="decoder.embeddings")
        depth = op("ReduceSum", SEES, ints(1), keepdims=0)  # (n), from 1
        back = op("Sub", *(op("Unsqueeze", depth, ints(axis)) for axis in (1, 0)))
        bias = self._bias("decoder", back, both_ways=False)
        hidden_from = op("Where", op("Cast", SEES, to=TensorProto.BOOL), "none", "lowest")  # (n, n)
        bias = op("Add", bias, hidden_from)  # (1, h, n, n)
        nodes = op("Shape", TOKENS)  # [1]
        hidden = self._at_once(hidden, encoded, nodes, bias)
        logits = op("Gemm", hidden, op("Gather", self.words(), EDGES), transB=1)  # (B n, e)
        shape = op("Concat", ints(-1), nodes, op("Shape", EDGES), axis=0)
        op("Reshape", logits, shape, output=Role.POOLED_LABELS)
        whole = ("batch", "nodes", "edges")
        outputs.append(helper.make_tensor_value_info(Role.POOLED_LABELS, TensorProto.FLOAT, whole))
        return self.emit.model(self.emit.rows(), outputs)

    def teaching(self) -> onnx.ModelProto:
        """(B, S) and what stands before each of B n target tokens, (B, n), -> (B, n, v)."""
        encoded, (op, ints) = self._encoder(), (self.emit.op, self.emit.ints)
        tokens, n = op("Reshape", text.BEFORE, ints(-1)), op("Shape", text.BEFORE, start=1)
        hidden = op("Gather", self.emit.weight("shared.weight"), tokens, output="decoder.embeddings")
        places = op("Range", self.packing.zero, op("Squeeze", n), self.packing.one)
        back = op("Sub", *(op("Unsqueeze", places, ints(axis)) for axis in (1, 0)))  # (n, n)
        later = op("Where", op("Less", back, self.packing.zero), "lowest", "none")
        hidden = self._at_once(hidden, encoded, n, op("Add", self._bias("decoder", back, both_ways=False), later))
        return self._taught(hidden)

    def encoder(self) -> onnx.ModelProto:
        """(B, S) -> the keys and values of cross-attention in all layers, and what hides padding from it."""
        encoded, op = self._encoder(), self.emit.op
        for i in range(self.depth):
            for value, cache in zip(self._attended(i, encoded), text.caches(text.CROSS, i), strict=True):
                op("Identity", value, output=cache)
        op("Identity", self.packing.mask_bias, output=text.CROSS_BIAS)
        return self.emit.model(self.emit.rows(), self._cross())

    def decoder(self) -> onnx.ModelProto:
        """One token more of each of N = B n texts: their last tokens, and whose caches they go on with, -> (N, v)."""
        op, ints = self.emit.op, self.emit.ints
        hidden = op("Gather", self.emit.weight("shared.weight"), text.IDS, output="decoder.embeddings")
        beams = op("Div", op("Shape", text.IDS), op("Shape", text.CROSS_BIAS, start=0, end=1))  # [1], n
        minus = self.emit.constant("minus_one", -1, np.int64)
        length = op("Squeeze", op("Shape", text.caches(text.PAST, 0)[0], start=2, end=3))
        back = op("Unsqueeze", op("Range", length, minus, minus), ints(0))  # (1, L + 1), from L to 0
        bias = self._bias("decoder", back, both_ways=False)

        def attend_itself(i: int, query: str, *new: str, output: str) -> str:
            one = ints(1)
            return self._attend(query, [*self._grown(i, *new), bias], one, output)

        attended = [[*text.caches(text.CROSS, i), text.CROSS_BIAS] for i in range(self.depth)]
        return self._stepped(self._decoder(hidden, beams, attend_itself, lambda i: attended[i]))

    def _encoder(self) -> str:
        """(T, d)."""
        op, packing = self.emit.op, Packing(self.emit)
        self.packing = packing
        hidden = op("Gather", self.emit.weight("shared.weight"), packing.packed("input_ids"), output="word_embeddings")
        bias = op("Add", self._bias("encoder", packing.distances(), both_ways=True), packing.mask_bias)  # (B, h, S, S)
        for i in range(self._layers("encoder")):
            block, name = f"encoder.block.{i}.", f"encoder.layer.{i}."
            query, key, value = self._projected(block + "layer.0", name, hidden)
            context = packing.attend(query, key, value, self.inner, name + "context", bias=bias)
            hidden = self._added(block + "layer.0.SelfAttention.o", name, "attention_output", context, hidden)
            hidden = self._feed_forward(block + "layer.1", name, hidden)
        return self.norm("encoder.final_layer_norm", hidden, "encoder.output")

    def _at_once(self, hidden: str, encoded: str, n: str, bias: str) -> str:
        """(B n, d) through all layers; ``bias`` (., n, n) is added to the decoder's attention to itself."""

        def attend_itself(_: int, query: str, *known: str, output: str) -> str:
            return self._attend(query, [*(self._heads(each, n) for each in known), bias], n, output)

        def attended(i: int) -> list[str]:
            return [*self._attended(i, encoded), self.packing.mask_bias]

        return self._decoder(hidden, n, attend_itself, attended)

    def _decoder(
        self, hidden: str, n: str, attend_itself: Callable[..., str], attended: Callable[[int], list[str]]
    ) -> str:
        """(B n, d) through all layers, scaled for the table of words.

        ``attend_itself`` is given a layer's number, query, key and value, (B n, i); ``attended`` gives the keys and
        values (B, h, S, i / h) of a layer's attention to the encoder, and what hides padding.
        """
        for i in range(self.depth):
            block, name = f"decoder.block.{i}.", f"decoder.layer.{i}."
            new = self._projected(block + "layer.0", name, hidden)
            context = attend_itself(i, *new, output=name + "context")
            hidden = self._added(block + "layer.0.SelfAttention.o", name, "attention_output", context, hidden)
            normed = self.norm(block + "layer.1.layer_norm", hidden, name + "cross_attention_norm")
            query = self.emit.linear(block + "layer.1.EncDecAttention.q", normed, name + "cross_query")
            context = self._attend(query, attended(i), n, name + "cross_context")
            hidden = self._added(block + "layer.1.EncDecAttention.o", name, "cross_attention_output", context, hidden)
            hidden = self._feed_forward(block + "layer.2", name, hidden)
        scale = self.emit.constant("output_scale", self.written.scale, np.float32)
        return self.emit.op("Mul", self.norm("decoder.final_layer_norm", hidden, "decoder.output"), scale)

    def _attended(self, i: int, encoded: str) -> list[str]:
        """(T, d) -> keys and values (B, h, S, i / h) of a decoder layer's attention to the encoder."""
        module, name = f"decoder.block.{i}.layer.1.EncDecAttention.", f"decoder.layer.{i}.cross_"
        of_tokens = [self.emit.linear(module + part[0], encoded, name + part) for part in ("key", "value")]
        return [self.packing.split_heads(each, self.inner) for each in of_tokens]

    def _layers(self, stack: str) -> int:
        return sum(site.name.startswith(stack) for site in self.arch.sites_of(Role.LAYER_OUTPUT))

    def _projected(self, place: str, name: str, hidden: str) -> list[str]:
        """Self-attention's query, key and value, (., i) each."""
        normed = self.norm(f"{place}.layer_norm", hidden, f"{name}attention_norm")
        roles = {"q": "query", "k": "key", "v": "value"}
        return [self.emit.linear(f"{place}.SelfAttention.{part}", normed, name + role) for part, role in roles.items()]

    def _added(self, module: str, name: str, site: str, value: str, hidden: str) -> str:
        """A sub-layer's last product, on the residual."""
        return self.emit.op("Add", self.emit.linear(module, value, name + site), hidden, output=f"{name}{site}.sum")

    def _feed_forward(self, place: str, name: str, hidden: str) -> str:
        module = f"{place}.DenseReluDense."
        normed = self.norm(f"{place}.layer_norm", hidden, name + "ffn_norm")
        gate, up = (module + "wi_0", module + "wi_1") if self.gated else ("", module + "wi")
        down = self.emit.feed_forward(normed, name, up=up, down=module + "wo", gate=gate)
        return self.emit.op("Add", down, hidden, output=name + "layer_output")

    def _bias(self, stack: str, distances: str, *, both_ways: bool) -> str:
        """int64 (rows, columns) -> (h, rows, columns)."""
        table = _DISTANCES.format(stack)
        return distance_bias(self.emit, table, distances, self.written.max_distance, both_ways=both_ways)

    def _heads(self, value: str, n: str) -> str:
        """(B n, i) -> (B, h, n, i / h)."""
        heads, op, width = self.heads, self.emit.op, self.width
        if n == self.emit.ints(1):  # a single token changes no places
            return op("Reshape", value, self.emit.ints(-1, heads, 1, width))
        shape = op("Concat", self.emit.ints(-1), n, self.emit.ints(heads, width), axis=0)
        return op("Transpose", op("Reshape", value, shape), perm=[0, 2, 1, 3])

    def _attend(self, query: str, known: Sequence[str], n: str, output: str) -> str:
        """(B n, i) -> (B n, i); known are keys and values (B, h, ., i / h), and what is added to the scores."""
        op, (keys, values, bias) = self.emit.op, known
        scores = op("MatMul", self._heads(query, n), op("Transpose", keys, perm=[0, 1, 3, 2]))
        context = op("MatMul", op("Softmax", op("Add", scores, bias), axis=-1), values)  # (B, h, n, .)
        merged = context if n == self.emit.ints(1) else op("Transpose", context, perm=[0, 2, 1, 3])
        return op("Reshape", merged, self.emit.ints(-1, self.inner), output=output)


class T5(Family):
    """T5, T5 1.1, Flan-T5, byT5 and mT5."""

    name = "t5"
    model_types = tuple(_MODEL_TYPES)
    limits = (
        "Labels are scored, or text is written; kinds of task with a head on the encoder alone are refused.",
        "The methods linear and top-k are refused; prefix and mam too, for attention tells keys apart by distances.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config; of the output layer nothing, where it is the embeddings."""
        sizes = _Sizes.read(config)
        sites, d = tuple(sizes.sites()), sizes.hidden_size
        linear = {s.reads: (s.out_features, s.in_features) for s in sites if s.role in (*LINEAR_ROLES, *_CROSS)}
        before = [site.module for site in sites if site.role.endswith("_norm")]
        norms = (*before, *(site.module for site in sites if site.role is Role.STACK_OUTPUT))
        # Whether logits are products with the embeddings: transformers 5 writes other models' as tied, but not scaled.
        said = config.get("tie_word_embeddings", _MODEL_TYPES[config["model_type"]].get("tie_word_embeddings", True))
        tied = bool(said and config.get("scale_decoder_outputs") is not False)
        # The output layer, where transformers 5 says that it is tied and not scaled: the file has both, or one.
        aliased = config.get("tie_word_embeddings") and not tied
        table: tuple[int, ...] = (sizes.vocab_size, d)
        tensors = {"shared.weight": table} | ({} if tied else {OUTPUT_LAYER: table})
        tensors |= {f"{module}.weight": shape for module, shape in linear.items()}
        tensors |= {f"{norm}.weight": (d,) for norm in norms}
        buckets = (sizes.relative_attention_num_buckets, sizes.n_heads)
        tensors |= {_DISTANCES.format(stack): buckets for stack, _, _ in sizes.stacks}
        # Those that the Compacter paper adds for BitFit: none on the stacks' final norms, one on the output layer.
        biases = {module: out for module, (out, _) in linear.items()} | dict.fromkeys(before, d)
        biases["lm_head"] = sizes.vocab_size
        scale = d**-0.5 if config.get("scale_decoder_outputs", tied) else 1.0
        start, end = sizes.decoder_start_token_id, sizes.eos_token_id
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            **{**sizes.common, "n_layers": sizes.n_layers + sizes.num_decoder_layers},
            sites=sites,
            tensors=tensors,
            norms=norms,
            head="labels",
            words="shared.weight",
            absent_biases={f"{module}.bias": (width,) for module, width in biases.items()},
            decoder=Decoder(start, end, scale, sizes.relative_attention_max_distance),
            builder=_Builder,
            own_values=LABEL_VALUES,
            aliases={OUTPUT_LAYER: "shared.weight"} if aliased else {},
        )


FAMILY = T5()

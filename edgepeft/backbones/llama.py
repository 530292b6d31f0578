"""Decoder-only models of Llama's kind (Touvron et al., 2023, arXiv:2302.13971).

SmolLM2, Llama 3, Mistral, Qwen2.5, Qwen3 and Gemma 3 are rows of a table (``_decoder_shapes.py``): RMSNorm before
sub-layers, rotary positions, keys and values shared by groups of heads (Ainslie et al., 2023, arXiv:2305.13245), gated
feed-forwards.  In terms of ``text.py`` the prompt's pass is the "encoder" and a step the "decoder", of the same layers:

    encoder   the prompt on packed tokens -> keys and values of each layer
    decoder   the token written last, which attends to the prompt's keys and to its own text's, by one softmax

A text begins with its prompt's last token, so the first step computes that token's keys again and ``CROSS_BIAS`` hides
the prompt's.  The training graph is one pass over the prompt and its target.

Letters: B rows, S their padded length, T real tokens, N texts, L tokens written, d hidden, h heads, k heads of
keys, g = h / k, e a head's width, v vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones import _decoder_shapes as shapes
from edgepeft.backbones import text
from edgepeft.backbones.base import PACKED_INDICES, Architecture, Attention, Decoder, Family, PackedIndex, Pooling, Role
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import checked
from edgepeft.backbones.packing import Packing, frequencies

_Attend = Callable[[int, str, str, str, str], str]  # layer; query, key and value (., . e); output -> (., h e)


class _Builder(text.TextBuilder):
    """Emits one model."""

    rows: ClassVar[str] = "texts"
    packing: Packing
    causal: str  # (B, 1, S, S), what is added to scores: 0, or the lowest number for padding and what comes later

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        super().__init__(architecture, checkpoint)
        self.layout, self.depth = shapes.LAYOUTS[architecture.model_type], architecture.n_layers
        self.plus_one = self.layout.plus_one
        rows = {part: architecture.tensors[f"model.layers.0.self_attn.{part}_proj.weight"][0] for part in "qk"}
        self.width = rows["q"] // architecture.n_heads
        self.heads, self.groups = rows["k"] // self.width, rows["q"] // rows["k"]
        self.turns: dict[Attention, tuple[str, str]] = {}  # cosines and sines of each token, (., 1, e)

    def model(self) -> onnx.ModelProto:
        hidden, d = self._read("input_ids", "attention_mask", self._attend_at_once), self.arch.hidden_size
        last = self.emit.op("Gather", hidden, self.packing.ends(), output=Role.POOLED_LAST.value)  # (B, d)
        outputs = self.packing.outputs(hidden, d)
        outputs.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, ("batch", d)))
        return self.emit.model(self.emit.rows(), outputs)

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
        rows = op("Gather", self.emit.weight(shapes.WORDS), ids, output="" if self.layout.scaled else name)
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
            query, key, value = (linear(f"{of}{role[0]}_proj", normed, name + role) for role in shapes.ATTENDING)
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
        """(., heads e) -> (., heads, e), normed where they are, and turned by each token's place.

        ``output`` names the value (., heads e) between both.
        """
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

    def _known(self, key: str, value: str) -> tuple[str, str]:
        """(T, k, e) each -> (B, k, S, e) each."""
        op = self.emit.op
        key, value = (op("Transpose", self._padded(each, self.heads), perm=[0, 2, 1, 3]) for each in (key, value))
        return key, value

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
        known, both = [], zip((key, value), text.caches(text.PAST, i), text.caches(text.PRESENT, i), strict=True)
        for new, past, present in both:
            kept = op("Gather", past, text.ORDER)  # (N, k, L, e)
            known.append(op("Concat", kept, op("Reshape", new, ints(-1, k, 1, e)), axis=2, output=present))
        query = op("Reshape", query, ints(-1, k, g, e))
        keys = (text.caches(text.CROSS, i)[0], known[0])
        of_prompt, of_text = (op("MatMul", query, op("Transpose", each, perm=[0, 1, 3, 2])) for each in keys)
        scores = op("Concat", op("Add", of_prompt, text.CROSS_BIAS), of_text, axis=3)
        whole = op("Softmax", scores, axis=-1)  # (N, k, g, S + L + 1)
        length = op("Shape", text.CROSS_BIAS, start=3, end=4)
        of_prompt = op("Slice", whole, ints(0), length, ints(3))
        of_text = op("Slice", whole, length, ints(np.iinfo(np.int64).max), ints(3))
        read = op("MatMul", of_prompt, text.caches(text.CROSS, i)[1])
        context = op("Add", read, op("MatMul", of_text, known[1]))  # (N, k, g, e)
        return op("Reshape", context, ints(-1, k * g * e), output=output)


class Llama(Family):
    """Decoders alone, by the whole model's names: ``model.layers.0...`` and ``lm_head``."""

    name = "llama"
    model_types = tuple(shapes.LAYOUTS)
    limits = (
        "They write text, or a linear layer reads the last token; tags, spans and embeddings are an encoder's.",
        "Where layers see a window, prompt and answer together may be as long as the window.",
        "The rope_type is default, linear or llama3; logits that are capped are refused.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        layout, sizes = shapes.LAYOUTS[config["model_type"]], shapes.sizes_of(config)
        sites = tuple(shapes.sites_of(layout, sizes))
        tensors = shapes.tensors_of(config, sizes, sites)
        longest, window = sizes.max_length, config.get("sliding_window")
        if window is not None and config.get("use_sliding_window", True):
            longest = min(longest, checked("sliding_window", window))
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
            words=shapes.WORDS,
            decoder=Decoder(None, sizes.eos_token_id, 1.0, 0),
            pooling=Pooling.LAST,
            attention=shapes.attention_of(config, sizes),
            weights_dtype="int8",  # a step's time is that of reading the weights
            builder=_Builder,
            reference="sdpa",  # the eager one's softmax is of float32: in float64 padding in front gives no number
        )


FAMILY = Llama()

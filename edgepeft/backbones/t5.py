"""T5 (Raffel et al., 2020, arXiv:1910.10683): an encoder and a decoder of pre-LN layers, without biases.

A task's labels are scored, not generated: the graph is the encoder on packed tokens, and one pass of the decoder over
the trie of the labels' tokens (``trie.py``), which the task puts in.  Where nothing reads the decoder it is left out.
Distances are seen in buckets, the same in all layers of a stack; norms divide by the root of the mean square.

Letters: B batch, S padded length, T real tokens, n nodes of the trie, e its edges, d hidden, h heads, i all heads
together, f intermediate, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones._t5 import (
    ACTIVATIONS,
    MODEL_TYPES,
    OUTPUT,
    absent_biases,
    decoder_of,
    is_tied,
    linear_layers,
    neighbours,
    norms_of,
    sites_of,
    sizes_of,
    tensors_of,
)
from edgepeft.backbones.base import Architecture, Family, Role
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.distances import buckets
from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import HELPERS, Packing
from edgepeft.backbones.trie import EDGES, LABEL_VALUES, SEES, TOKENS

__all__ = ["FAMILY", "T5"]


class T5(Family):
    """T5, T5 1.1, Flan-T5, byT5 and mT5."""

    name: ClassVar[str] = "t5"
    model_types: ClassVar[tuple[str, ...]] = tuple(MODEL_TYPES)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config; of the output layer nothing, where it is the embeddings.

        Raises:
            UsageError: a key is missing or of the wrong kind, or the model uses what is not supported.
        """
        sizes = sizes_of(config)
        linear = dict(linear_layers(sizes))
        norms = tuple(norms_of(sizes))
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=sizes.d_model,
            n_layers=sizes.num_layers + sizes.num_decoder_layers,
            n_heads=sizes.num_heads,
            intermediate_size=sizes.d_ff,
            vocab_size=sizes.vocab_size,
            max_length=sizes.n_positions,
            pad_token_id=sizes.pad_token_id,
            layer_norm_eps=sizes.layer_norm_epsilon,
            activation=sizes.feed_forward_proj,
            sites=tuple(sites_of(sizes)),
            tensors=tensors_of(sizes, linear, norms, tied=is_tied(config)),
            pooler={},
            norms=norms,
            inputs=("input_ids", "attention_mask"),
            head="labels",
            words="shared.weight",
            absent_biases=absent_biases(sizes, linear, norms),
            decoder=decoder_of(config, sizes),
        )

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """Where each site's value, input and residual, the helpers, and the labels stand in the graph."""
        values = {helper.value: value for helper, value in HELPERS.items()}
        values |= {name: name for name in LABEL_VALUES}
        for site in architecture.sites:
            values[site.name] = site.name
            values |= {f"{site.name}.{suffix}": value for suffix, value in neighbours(site).items()}
        return values

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """Nothing: whole models call their parts as the base model does."""
        return ""

    def open_checkpoint(self, architecture: Architecture, weights: Path) -> Checkpoint:
        """Index the weights.

        Raises:
            BundleError: not safetensors, truncated, or of another model.
        """
        return Checkpoint.open(weights).with_prefix_for(architecture.tensors, ("",))

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are the encoder's last_hidden_state [B, S, d] and pooled values [B, d],
        and what the decoder gives the edges of the labels, pooled.labels [B, n, e].

        Raises:
            BundleError: the checkpoint has a tensor in another shape or dtype.
        """
        return _Builder(architecture, checkpoint).model()


FAMILY = T5()


class _Builder:
    """Emits one model; the methods follow the data from token ids to the labels' edges."""

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        assert architecture.decoder is not None
        self.arch, self.decoder = architecture, architecture.decoder
        self.emit = Emitter(checkpoint, architecture.tensors)
        self.packing = Packing(self.emit, architecture.n_heads)
        self.inner = architecture.tensors["encoder.block.0.layer.0.SelfAttention.q.weight"][0]
        self.gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in architecture.tensors

    def model(self) -> onnx.ModelProto:
        encoded = self._encoder()
        outputs = self.packing.outputs(encoded, self.arch.hidden_size)
        self._decoder(encoded)
        shape = ("batch", "nodes", "edges")
        outputs.append(helper.make_tensor_value_info(Role.POOLED_LABELS, TensorProto.FLOAT, shape))
        return self.emit.model(self.arch.model_type, self.arch.inputs, outputs)

    def _encoder(self) -> str:
        """(T, d)."""
        op, packing = self.emit.op, self.packing
        hidden = op("Gather", self.emit.weight("shared.weight"), packing.packed("input_ids"), output="word_embeddings")
        length = op("Gather", packing.shape, packing.one)
        columns = op("Range", packing.zero, length, packing.one)
        distances = op("Sub", *(op("Unsqueeze", columns, self.emit.ints(axis)) for axis in (0, 1)))  # how far on
        bias = op("Add", self._bias("encoder", distances, both_ways=True), packing.mask_bias)  # (B, h, S, S)
        for i in range(self._depth("encoder")):
            block, name = f"encoder.block.{i}.", f"encoder.layer.{i}."
            query, key, value = self._projected(block + "layer.0", name, hidden)
            context = packing.attend(query, key, value, self.inner, name + "context", bias=bias)
            hidden = self._added(block + "layer.0.SelfAttention.o", name, "attention_output", context, hidden)
            hidden = self._feed_forward(block + "layer.1", name, hidden)
        return self._norm("encoder.final_layer_norm", hidden, "encoder.output")

    def _decoder(self, encoded: str) -> None:
        """(T, d) -> pooled.labels (B, n, e)."""
        op, ints = self.emit.op, self.emit.ints
        hidden, bias = self._labels()
        for i in range(self._depth("decoder")):
            block, name = f"decoder.block.{i}.", f"decoder.layer.{i}."
            query, key, value = self._projected(block + "layer.0", name, hidden)
            context = self._attend(query, self._heads(key), self._heads(value), bias, name + "context")
            hidden = self._added(block + "layer.0.SelfAttention.o", name, "attention_output", context, hidden)
            query, *encoder = self._projected(block + "layer.1", name, hidden, encoded)
            keys, values = (self.packing.split_heads(each, self.inner) for each in encoder)
            context = self._attend(query, keys, values, self.packing.mask_bias, name + "cross_context")
            hidden = self._added(block + "layer.1.EncDecAttention.o", name, "cross_attention_output", context, hidden)
            hidden = self._feed_forward(block + "layer.2", name, hidden)
        scale = self.emit.constant("output_scale", self.decoder.scale, np.float32)
        hidden = op("Mul", self._norm("decoder.final_layer_norm", hidden, "decoder.output"), scale)
        table = self.emit.weight(OUTPUT if OUTPUT in self.arch.tensors else "shared.weight")
        logits = op("Gemm", hidden, op("Gather", table, EDGES), transB=1)  # (B n, e)
        shape = op("Concat", ints(-1), self.nodes, op("Shape", EDGES), axis=0)
        op("Reshape", logits, shape, output=Role.POOLED_LABELS)

    def _labels(self) -> tuple[str, str]:
        """What the decoder starts from (B n, d), and what is added to its attention to itself (1, h, n, n).

        Without a task there are no labels, and the trie is a single node.
        """
        op, ints = self.emit.op, self.emit.ints
        root = {TOKENS: [self.decoder.start_token_id], SEES: [[1]], EDGES: [self.decoder.end_token_id]}
        for name, value in root.items():
            op("Identity", self.emit.constant(f"{name}.none", value, np.int64), output=name)
        self.nodes = op("Shape", TOKENS)  # [1]
        batch = op("Slice", self.packing.shape, ints(0), ints(1))
        tokens = op("Reshape", op("Expand", TOKENS, op("Concat", batch, self.nodes, axis=0)), ints(-1))  # (B n)
        hidden = op("Gather", self.emit.weight("shared.weight"), tokens, output="decoder.embeddings")
        depth = op("ReduceSum", SEES, ints(1), keepdims=0)  # (n), from 1
        back = op("Sub", *(op("Unsqueeze", depth, ints(axis)) for axis in (1, 0)))
        bias = self._bias("decoder", back, both_ways=False)
        hidden_from = op("Where", op("Cast", SEES, to=TensorProto.BOOL), "none", "lowest")  # (n, n)
        return hidden, op("Add", bias, hidden_from)

    def _depth(self, stack: str) -> int:
        return sum(site.name.startswith(stack) for site in self.arch.sites_of(Role.LAYER_OUTPUT))

    def _norm(self, module: str, value: str, output: str) -> str:
        """x / sqrt(mean(x^2) + eps) w, in the operators that ONNX Runtime fuses."""
        op, emit = self.emit.op, self.emit
        two, epsilon = (
            emit.constant(name, number, np.float32)
            for name, number in (("two", 2), ("epsilon", self.arch.layer_norm_eps))
        )
        square = op("Add", op("ReduceMean", op("Pow", value, two), emit.ints(-1)), epsilon)
        return op("Mul", op("Div", value, op("Sqrt", square)), emit.weight(f"{module}.weight"), output=output)

    def _linear(self, module: str, value: str, output: str = "") -> str:
        return self.emit.op("Gemm", value, self.emit.weight(f"{module}.weight"), transB=1, output=output)

    def _projected(self, place: str, name: str, hidden: str, encoded: str = "") -> list[str]:
        """Query, key and value, (., i) each; the last two of the encoder's output where that is given."""
        module, kind = (f"{place}.EncDecAttention.", "cross_") if encoded else (f"{place}.SelfAttention.", "")
        normed = self._norm(f"{place}.layer_norm", hidden, f"{name}{kind}attention_norm")
        read = {"q": normed, "k": encoded or normed, "v": encoded or normed}
        roles = zip(read.items(), ("query", "key", "value"), strict=True)
        return [self._linear(module + linear, value, name + kind + role) for (linear, value), role in roles]

    def _added(self, module: str, name: str, site: str, value: str, hidden: str) -> str:
        """A sub-layer's last product, on the residual."""
        return self.emit.op("Add", self._linear(module, value, name + site), hidden, output=f"{name}{site}.sum")

    def _feed_forward(self, place: str, name: str, hidden: str) -> str:
        module = f"{place}.DenseReluDense."
        operator, attributes = ACTIVATIONS[self.arch.activation]
        normed = self._norm(f"{place}.layer_norm", hidden, name + "ffn_norm")
        site = name + "ffn_activation"
        if self.gated:
            gate = self.emit.op(operator, self._linear(module + "wi_0", normed, name + "ffn_gate"), **attributes)
            self.emit.op("Mul", gate, self._linear(module + "wi_1", normed, name + "ffn_gated"), output=site)
        else:
            self.emit.op(operator, self._linear(module + "wi", normed, name + "ffn_up"), output=site, **attributes)
        down = self._linear(module + "wo", site, name + "ffn_output")
        return self.emit.op("Add", down, hidden, output=name + "layer_output")

    def _bias(self, stack: str, distances: str, *, both_ways: bool) -> str:
        """int64 (rows, columns) -> (h, rows, columns)."""
        op, emit, largest = self.emit.op, self.emit, self.decoder.max_distance
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found = buckets(self.arch.tensors[table][0], largest, both_ways=both_ways)
        # Bytes: as large as weights are, a constant would be stored among these, and must not move them from 64 bytes.
        bucket = op("Cast", emit.constant(f"{stack}.buckets", found, np.uint8), to=TensorProto.INT64)
        by_distance = op("Gather", emit.weight(table), bucket)
        furthest = emit.constant("furthest", largest, np.int64)
        if both_ways:
            distances = op("Add", distances, furthest)
        last = emit.constant(f"{stack}.last", len(found) - 1, np.int64)
        place = op("Clip", distances, self.packing.zero, last)
        return op("Gather", op("Transpose", by_distance, perm=[1, 0]), place, axis=1)

    def _heads(self, value: str) -> str:
        """(B n, i) -> (B, h, n, i / h)."""
        heads, op = self.arch.n_heads, self.emit.op
        shape = op("Concat", self.emit.ints(-1), self.nodes, self.emit.ints(heads, self.inner // heads), axis=0)
        return op("Transpose", op("Reshape", value, shape), perm=[0, 2, 1, 3])

    def _attend(self, query: str, keys: str, values: str, bias: str, output: str) -> str:
        """(B n, i) and twice (B, h, ., i / h) -> (B n, i)."""
        op = self.emit.op
        scores = op("MatMul", self._heads(query), op("Transpose", keys, perm=[0, 1, 3, 2]))
        context = op("MatMul", op("Softmax", op("Add", scores, bias), axis=-1), values)  # (B, h, n, .)
        merged = op("Transpose", context, perm=[0, 2, 1, 3])
        return op("Reshape", merged, self.emit.ints(-1, self.inner), output=output)

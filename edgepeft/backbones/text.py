"""The two graphs that generate text, the training graph (teacher forcing), and the names of their inputs and outputs.

The encoder's graph gives each decoder layer's keys and values for cross-attention, once.  The decoder's graph is one
step: the texts' last tokens in, logits of the next ones out.  Each text continues one of those of the step before
(``ORDER``) with its cache, which serves beams, reordering and early ends.
The training graph has both parts; its decoder reads all of a target but its last token at once.
A model with a decoder has a builder of these graphs (``TextBuilder``).

Letters: B rows, S their padded length, T tokens of the longest target, n beams of a row, N = B n texts, P texts of the
step before, L tokens that they have, d hidden, h heads, e a head's width, v vocabulary.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import OUTPUT_LAYER, Architecture, Role
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import Emitter

IDS, ORDER = "decoder.ids", "decoder.order"  # int64 [N]: last tokens; which text of the step before is continued
CROSS, CROSS_BIAS = "cross", "cross.bias"  # float [B, h, S, e] of each layer; [B, 1, 1, S]: 0, lowest for padding
PAST, PRESENT = "past", "present"  # float [P, h, L, e] and [N, h, L + 1, e] of each layer
CACHED = "past.length"  # int64 [1], L, of a decoder-only model
LOGITS = "logits"  # float [N, v]; of targets that are taught, [B, T, v]
BEFORE = "decoder_input_ids"  # int64 [B, T]: what stands before each token of a target that is taught


class TextGraphs(NamedTuple):
    """Over the weights of the backbone's own graph, with values of the same names."""

    encoder: onnx.ModelProto
    decoder: onnx.ModelProto

    def unequal(self) -> str | None:
        """A cache that one of them lacks, or has in other sizes; None where all fit."""
        given, taken = (
            {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
            for values in (self.encoder.graph.output, self.decoder.graph.input)
        )
        cross = {name for name in (*given, *taken) if name.startswith(f"{CROSS}.")}
        return min((name for name in cross if given.get(name) != taken.get(name)), default=None)


def caches(kind: str, layer: int) -> tuple[str, str]:
    """The names of a decoder layer's keys and values."""
    return f"{kind}.key.{layer}", f"{kind}.value.{layer}"


class TextBuilder(ABC):
    """Emits one graph of a model with a decoder of ``depth`` layers; a subclass emits these.

    ``rows`` is what a step takes of the encoder: a row's once ("rows"), or again for each of its texts ("texts").
    """

    depth: int
    heads: int  # of keys and values
    width: int  # of a head
    rows: ClassVar[str] = "rows"
    plus_one: bool = False  # whether norms multiply by 1 + weight

    def __init__(self, architecture: Architecture, checkpoint: Checkpoint) -> None:
        self.arch, self.emit = architecture, Emitter(checkpoint, architecture)

    @abstractmethod
    def model(self) -> onnx.ModelProto:
        """The bare backbone's graph."""

    @abstractmethod
    def encoder(self) -> onnx.ModelProto:
        """(B, S) -> what a step reads of the rows, ``_cross``."""

    @abstractmethod
    def decoder(self) -> onnx.ModelProto:
        """One token more of each of N texts: their last tokens, and whose caches they go on with; by ``_stepped``."""

    @abstractmethod
    def teaching(self) -> onnx.ModelProto:
        """(B, S) and what stands before each of n target tokens, (B, n), -> (B, n, v), by ``_taught``."""

    def text_graphs(self) -> TextGraphs:
        """The graph of the rows, and that of a step."""
        return TextGraphs(self.encoder(), type(self)(self.arch, self.emit.checkpoint).decoder())

    def norm(self, module: str, value: str, output: str = "") -> str:
        """RMSNorm, x / sqrt(mean(x^2) + eps) w, in the operators that ONNX Runtime fuses."""
        op, constant, weight = self.emit.op, self.emit.constant, self.emit.weight(f"{module}.weight")
        if self.plus_one:
            weight = op("Add", weight, constant("plus_one", 1, np.float32))
        square = op("ReduceMean", op("Pow", value, constant("two", 2, np.float32)), self.emit.ints(-1))
        root = op("Sqrt", op("Add", square, constant("epsilon", self.arch.layer_norm_eps, np.float32)))
        return op("Mul", op("Div", value, root), weight, output=output)

    def words(self) -> str:
        """The table that the output is multiplied by."""
        return self.emit.weight(OUTPUT_LAYER if OUTPUT_LAYER in self.arch.tensors else self.arch.words)

    def _grown(self, layer: int, *new: str) -> list[str]:
        """Keys and values of a step's tokens, (N, h e), behind those of their texts: (N, h, L + 1, e) each."""
        op, grown = self.emit.op, list[str]()
        for value, past, present in zip(new, caches(PAST, layer), caches(PRESENT, layer), strict=True):
            kept = op("Gather", past, ORDER)  # (N, h, L, e)
            one = op("Reshape", value, self.emit.ints(-1, self.heads, 1, self.width))
            grown.append(op("Concat", kept, one, axis=2, output=present))
        return grown

    def _logits(self, hidden: str) -> str:
        """(., d) -> (., v)."""
        return self.emit.op("Gemm", hidden, self.words(), transB=1, output=Role.POOLED_LABELS)

    def _stepped(self, hidden: str) -> onnx.ModelProto:
        """(N, d) -> the graph of a step."""
        self.emit.op("Identity", self._logits(hidden), output=LOGITS)  # a name of its own: the site may be adapted
        tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ("texts",)) for name in (IDS, ORDER)]
        inputs = [*tokens, *self._cross(), *self._caches(PAST, "texts_before", "written")]
        logits = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("texts", self.arch.vocab_size))
        return self.emit.model(inputs, [logits, *self._caches(PRESENT, "texts", "written_and_one")])

    def _taught(self, hidden: str) -> onnx.ModelProto:
        """(B n, d) -> the training graph."""
        op, logits = self.emit.op, self._logits(hidden)
        op("Reshape", logits, op("Concat", op("Shape", BEFORE), self.emit.ints(-1), axis=0), output=LOGITS)
        before = helper.make_tensor_value_info(BEFORE, TensorProto.INT64, ("batch", "target"))
        taught = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("batch", "target", self.arch.vocab_size))
        return self.emit.model([*self.emit.rows(), before], [taught])

    def _cross(self) -> list[onnx.ValueInfoProto]:
        """Values that the encoder's graph gives and the decoder's takes."""
        bias = helper.make_tensor_value_info(CROSS_BIAS, TensorProto.FLOAT, (self.rows, 1, 1, "length"))
        return [*self._caches(CROSS, self.rows, "length"), bias]

    def _caches(self, kind: str, texts: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = (texts, self.heads, length, self.width)
        names = (name for layer in range(self.depth) for name in caches(kind, layer))
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

"""The two graphs that generate text, the training graph (teacher forcing), and the names of their inputs and outputs.

The encoder's graph gives each decoder layer's keys and values for cross-attention, once.  The decoder's graph is one
step: the texts' last tokens in, logits of the next ones out.  Each text continues one of those of the step before
(``ORDER``) with its cache, which serves beams, reordering and early ends.
The training graph has both parts; its decoder reads all of a target but its last token at once.

Letters: B rows, S their padded length, T tokens of the longest target, n beams of a row, N = B n texts, P texts of the
step before, L tokens that they have, h heads, e a head's width, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper

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


@dataclass(frozen=True)
class Steps:
    """The interface of all three graphs, for a decoder of these sizes."""

    layers: int
    heads: int
    width: int  # of a head
    vocabulary: int
    rows: str = "rows"  # what a step takes of the encoder: a row's once, or again for each of its texts

    def cross(self) -> list[onnx.ValueInfoProto]:
        """Values that the encoder's graph gives and the decoder's takes."""
        bias = helper.make_tensor_value_info(CROSS_BIAS, TensorProto.FLOAT, (self.rows, 1, 1, "length"))
        return [*self._caches(CROSS, self.rows, "length"), bias]

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Of a step of the decoder."""
        tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ("texts",)) for name in (IDS, ORDER)]
        return [*tokens, *self.cross(), *self._caches(PAST, "texts_before", "written")]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        """Of a step of the decoder."""
        logits = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("texts", self.vocabulary))
        return [logits, *self._caches(PRESENT, "texts", "written_and_one")]

    def teaching(self) -> tuple[onnx.ValueInfoProto, onnx.ValueInfoProto]:
        """The input, beside tokens, and the output of the graph that teaches."""
        before = helper.make_tensor_value_info(BEFORE, TensorProto.INT64, ("batch", "target"))
        logits = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("batch", "target", self.vocabulary))
        return before, logits

    def _caches(self, kind: str, texts: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = (texts, self.heads, length, self.width)
        names = (name for layer in range(self.layers) for name in caches(kind, layer))
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

"""Packed tokens: padding is dropped after the token ids, so every projection runs on [tokens, d].

Only attention sees [batch, heads, seq, seq]: gathers of head-sized rows unpack and split heads in one
copy, so a batch without padding costs no more than the usual transposes.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, e = d / h.
"""

from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex, Role
from edgepeft.backbones.emit import Emitter

# Two lookups that undo each other, (T h) -> (B, h, S) and back, and where a token is: see ``edgepeft.graph.gradient``.
SPLIT, MERGE, REAL = "heads.split", "heads.merge", "token.real"
# Each token's place in the padded batch and in its row, and the number of heads: see ``edgepeft.graph.one_row``.
INDEX, COLUMN, N_HEADS = "token.index", "token.column", "n_heads"
LAST = "row.last"  # each row's last among the packed tokens, where something reads it
# How ``Packing.attend`` gets from the merged heads up to its query, by each node's first input: see
# ``edgepeft.graph.prune_last_layer``.
ATTENTION = ("Gather", "Reshape", "MatMul", "Softmax", "Add", "MatMul", "Gather", "Reshape")
MERGED = ("Reshape", *ATTENTION[:3])  # how it gives (T, d) of what each head read


class Lookups(NamedTuple):
    """Which tokens attend to which, by their heads' indices."""

    queries: str
    keys: str  # of values too
    merge: str  # the way back
    bias: str  # of what is looked up but not seen


class Packing:
    """Which tokens of a batch are real, where each came from, and what moves values between both forms.

    Emits its nodes when it is made, of the values ``ids`` and ``mask``, (B, S).
    ``column`` (T) is each token's place in its padded row; ``zero`` and ``one`` are int64 constants.
    """

    def __init__(self, emit: Emitter, ids: str = "input_ids", mask: str = "attention_mask") -> None:
        self.emit, self.n_heads = emit, emit.arch.n_heads
        op, ints = emit.op, emit.ints
        heads = emit.constant("head_range", np.arange(self.n_heads), np.int64)  # (h)
        count = emit.constant(N_HEADS, self.n_heads, np.int64)
        zero, one = emit.constant("zero", 0, np.int64), emit.constant("one", 1, np.int64)
        self.zero, self.one = zero, one

        self.shape = op("Shape", ids)
        self.batch, self.length = op("Gather", self.shape, zero), op("Gather", self.shape, one)
        length = self.length
        mask = op("Cast", mask, to=TensorProto.BOOL)
        self.real = op("Cast", mask, to=TensorProto.INT64, output=REAL)  # (B, S) of 0, 1
        flat = op("Reshape", self.real, ints(-1))  # (B S)
        self.index = op("Reshape", op("NonZero", flat), ints(-1), output=INDEX)  # (T) into (B S)
        self.row = op("Div", self.index, length, output=PACKED_INDICES[PackedIndex.ROW])  # (T)
        self.column = op("Mod", self.index, length, output=COLUMN)  # (T)
        # For each padded place the packed token that stands there; padding borrows a neighbour.
        self.place = op("Max", op("Sub", op("CumSum", flat, zero), one), zero)  # (B S)
        self.counts = op("ReduceSum", self.real, ints(1), keepdims=0)  # (B)
        self.starts = op(
            "CumSum", self.counts, zero, exclusive=1, output=PACKED_INDICES[PackedIndex.FIRST_TOKEN]
        )  # (B)
        tokens = op("Range", zero, op("Squeeze", op("Shape", self.index)), one)
        op("Sub", tokens, op("Gather", self.starts, self.row), output=PACKED_INDICES[PackedIndex.POSITION])  # (T)

        self.split = self.of_heads(op("Reshape", self.place, self.shape), output=SPLIT)  # (B, h, S) into (T h)
        merge = op("Add", op("Unsqueeze", op("Mul", self.row, count), ints(1)), heads)  # (T, h)
        column = op("Unsqueeze", self.column, ints(1))
        self.merge = op("Add", op("Mul", merge, length), column, output=MERGE)  # (T, h) into (B h S)
        lowest = emit.constant("lowest", np.finfo(np.float32).min, np.float32)
        none = emit.constant("none", 0.0, np.float32)
        bias = op("Where", op("Cast", self.real, to=TensorProto.BOOL), none, lowest)
        self.mask_bias = op("Unsqueeze", bias, ints(1, 2), output=Role.ATTENTION_BIAS.value)  # (B, 1, 1, S)

    def packed(self, value: str, output: str = "") -> str:
        """(B, S) -> (T)."""
        return self.emit.op("Gather", self.emit.op("Reshape", value, self.emit.ints(-1)), self.index, output=output)

    def distances(self) -> str:
        """(S, S): how far on the places of a padded row are from each of them."""
        op = self.emit.op
        columns = op("Range", self.zero, self.length, self.one)
        return op("Sub", *(op("Unsqueeze", columns, self.emit.ints(axis)) for axis in (0, 1)))

    def of_heads(self, tokens: str, output: str) -> str:
        """Packed tokens, (., places) into (T) -> their heads, (., h, places) into (T h)."""
        op, ints = self.emit.op, self.emit.ints
        first = op("Unsqueeze", op("Mul", tokens, N_HEADS), ints(1))
        return op("Add", first, op("Unsqueeze", "head_range", ints(1)), output=output)

    def attend(
        self,
        query: str,
        key: str,
        value: str,
        width: int,
        output: str,
        *,
        bias: str = "",
        within: Lookups | None = None,
        heads: str = "",
    ) -> str:
        """Dot products over each row's own tokens: all (T, d), the query scaled already; ``width`` is d.

        ``bias`` is added to them, (B, h, S, S); where none is given, what leaves padding out.  ``within`` says which
        tokens see which, all of a row where it is not given.  ``heads`` is what the names of the split keys and values
        begin with, if they are to have any.
        """
        op, ints, e = self.emit.op, self.emit.ints, width // self.n_heads
        within = within or Lookups(self.split, self.split, self.merge, self.mask_bias)
        query = self.split_heads(query, width, within.queries)
        names = [heads and heads + role for role in (Role.KEY_HEADS, Role.VALUE_HEADS)]
        key, value = (self.split_heads(x, width, within.keys, n) for x, n in zip((key, value), names, strict=True))
        key = op("Transpose", key, perm=[0, 1, 3, 2])  # (B, h, e, S)
        scores = op("Add", op("MatMul", query, key), bias or within.bias)  # (B, h, S, S)
        context = op("MatMul", op("Softmax", scores, axis=-1), value)
        merged = op("Gather", op("Reshape", context, ints(-1, e)), within.merge)  # (T, h, e)
        return op("Reshape", merged, ints(-1, width), output=output)

    def split_heads(self, value: str, width: int, places: str = "", output: str = "") -> str:
        """(T, d) -> (B, h, S, e) in one copy, or by other ``places`` than a row's; ``width`` is d."""
        rows = self.emit.op("Reshape", value, self.emit.ints(-1, width // self.n_heads))
        return self.emit.op("Gather", rows, places or self.split, output=output)

    def ends(self) -> str:
        """int64 (B): each row's last among the packed tokens."""
        return self.emit.op("Sub", self.emit.op("Add", self.starts, self.counts), self.one, output=LAST)

    def outputs(self, hidden: str, width: int) -> list[onnx.ValueInfoProto]:
        """The graph's outputs of the last layer's (T, d): last_hidden_state (B, S, d), pooled values (B, d)."""
        op, ints = self.emit.op, self.emit.ints
        op("Gather", hidden, self.starts, output="pooled.first")  # (B, d)
        rows = op("Unsqueeze", op("Range", self.zero, self.batch, self.one), ints(1))  # (B, 1)
        members = op("Cast", op("Equal", self.row, rows), to=TensorProto.FLOAT)  # (B, T)
        counts = op("Unsqueeze", op("Cast", self.counts, to=TensorProto.FLOAT), ints(1))
        op("Div", op("MatMul", members, hidden), counts, output="pooled.mean")  # (B, d)
        real = op("Unsqueeze", op("Cast", self.real, to=TensorProto.FLOAT), ints(2))  # (B, S, 1)
        padded = op("Gather", hidden, op("Reshape", self.place, self.shape))  # (B, S, d)
        op("Mul", padded, real, output="last_hidden_state")  # zero where there is no token
        pooled = ("batch", width)
        shapes = {"last_hidden_state": ("batch", "sequence", width), "pooled.first": pooled, "pooled.mean": pooled}
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

"""Rotary positions (Su et al., 2021, arXiv:2104.09864, in the form of GPT-NeoX): pairs of a head's numbers are turned.

    x' = x cos(p w) + swap(x) sin(p w),  swap(x) = (-x_2, x_1),  w_j = theta^(-2 j / e)

p is a token's place in its row; x_1 and x_2 are the halves of a head.

Letters: S padded length, T real tokens, d hidden, h heads, e = d / h.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.emit import Emitter
from edgepeft.backbones.packing import Packing

__all__ = ["Rotary", "frequencies"]


def frequencies(theta: float, width: int) -> NDArray[np.float32]:
    """w, (e / 2): to the bit what PyTorch's float32 gives, for at position 8,000 its last digit turns visibly."""
    powers = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(1) / np.power(theta, powers.astype(np.float64)).astype(np.float32)


class Rotary:
    """Turns queries, which it scales too, and keys of packed tokens, by one ``theta``."""

    def __init__(self, emit: Emitter, packing: Packing, theta: float, width: int) -> None:
        self.emit, self.n_heads, self.width = emit, packing.n_heads, width
        op, ints, e = emit.op, emit.ints, width // packing.n_heads
        places = op("Cast", op("Range", packing.zero, packing.length, packing.one), to=TensorProto.FLOAT)
        angles = emit.constant(f"frequencies_{theta:g}", frequencies(theta, e), np.float32)
        angles = op("Mul", op("Unsqueeze", places, ints(1)), angles)  # (S, e / 2)
        cosine, sine = op("Cos", angles), op("Sin", angles)
        whole = (op("Concat", cosine, cosine, axis=1), op("Concat", op("Neg", sine), sine, axis=1))  # (S, e)
        of_tokens = (op("Unsqueeze", op("Gather", table, packing.column), ints(1)) for table in whole)
        self._key = tuple(of_tokens)  # (T, 1, e)
        scale = emit.constant("query_scale", e**-0.5, np.float32)
        self._query = tuple(op("Mul", table, scale) for table in self._key)

    def query(self, value: str) -> str:
        """(T, d) -> (T, d), divided by the root of e."""
        return self._turned(value, *self._query)

    def key(self, value: str) -> str:
        """(T, d) -> (T, d)."""
        return self._turned(value, *self._key)

    def _turned(self, value: str, cosine: str, sine: str) -> str:
        op, ints, e = self.emit.op, self.emit.ints, self.width // self.n_heads
        heads = ints(-1, self.n_heads, e)
        halves = op("Reshape", value, ints(-1, self.n_heads, 2, e // 2))
        swapped = op("Reshape", op("Gather", halves, ints(1, 0), axis=2), heads)  # the sine has its sign
        kept = op("Mul", op("Reshape", value, heads), cosine)
        return op("Reshape", op("Add", kept, op("Mul", swapped, sine)), ints(-1, self.width))

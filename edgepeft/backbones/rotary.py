"""Rotary positions (Su et al., 2021, arXiv:2104.09864, equation 34): pairs of a head's numbers are turned.

    x' = x cos(p w) + swap(x) sin(p w),  swap(x) = (-x_2, x_1),  w_j = theta^(-2 j / e)

p is a token's place in its row; x_1 and x_2 are the halves of a head in the form of GPT-NeoX, and neighbours in the
paper's own.

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


def exact_frequencies(theta: float, width: int) -> NDArray[np.float64]:
    """w, (e / 2)."""
    return np.power(theta, -np.arange(0, width, 2) / width)


class Rotary:
    """Turns queries, which it scales too, and keys of packed tokens, by one ``theta``.

    Pairs are ``neighbours``, by angles in float64 as in RoFormer's code, or of halves, by those in float32.
    """

    def __init__(self, emit: Emitter, packing: Packing, theta: float, width: int, *, neighbours: bool = False) -> None:
        self.emit, self.n_heads, self.width, self._inner = emit, packing.n_heads, width, int(neighbours)
        op, ints, e = emit.op, emit.ints, width // packing.n_heads
        kind, found = (TensorProto.DOUBLE, exact_frequencies) if neighbours else (TensorProto.FLOAT, frequencies)
        places = op("Cast", op("Range", packing.zero, packing.length, packing.one), to=kind)
        angles = emit.constant(f"frequencies_{theta:g}", w := found(theta, e), w.dtype.type)
        angles = op("Mul", op("Unsqueeze", places, ints(1)), angles)  # (S, e / 2)
        if neighbours:  # ONNX Runtime has no cosine of float64 in 1.24: it is the sine a quarter turn on
            turned = op("Add", angles, emit.constant("quarter_turn", np.pi / 2, np.float64))
            cosine, sine = (op("Cast", op("Sin", each), to=TensorProto.FLOAT) for each in (turned, angles))
        else:
            cosine, sine = op("Cos", angles), op("Sin", angles)
        whole = (self._of_both(cosine, cosine), self._of_both(op("Neg", sine), sine))  # (S, e)
        of_tokens = (op("Unsqueeze", op("Gather", table, packing.column), ints(1)) for table in whole)
        self._key = tuple(of_tokens)  # (T, 1, e)
        scale = emit.constant("query_scale", e**-0.5, np.float32)
        self._query = tuple(op("Mul", table, scale) for table in self._key)

    def _of_both(self, one: str, other: str) -> str:
        """What each half, or neighbour, is multiplied by: (S, e / 2) twice -> (S, e)."""
        op, ints = self.emit.op, self.emit.ints
        if not self._inner:
            return op("Concat", one, other, axis=1)
        pairs = op("Concat", *(op("Unsqueeze", part, ints(2)) for part in (one, other)), axis=2)
        return op("Reshape", pairs, ints(-1, self.width // self.n_heads))

    def query(self, value: str) -> str:
        """(T, d) -> (T, d), divided by the root of e."""
        return self._turned(value, *self._query)

    def key(self, value: str) -> str:
        """(T, d) -> (T, d)."""
        return self._turned(value, *self._key)

    def _turned(self, value: str, cosine: str, sine: str) -> str:
        op, ints, e = self.emit.op, self.emit.ints, self.width // self.n_heads
        heads = ints(-1, self.n_heads, e)
        parts = (e // 2, 2) if self._inner else (2, e // 2)
        pairs = op("Reshape", value, ints(-1, self.n_heads, *parts))
        swapped = op("Reshape", op("Gather", pairs, ints(1, 0), axis=2 + self._inner), heads)  # the sine has its sign
        kept = op("Mul", op("Reshape", value, heads), cosine)
        return op("Reshape", op("Add", kept, op("Mul", swapped, sine)), ints(-1, self.width))

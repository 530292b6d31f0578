"""Products with 8-bit matrices, straight through the rounding of both operands (Bengio et al., 2013, arXiv:1308.3432).

With g = dy scale, (T, out):  dx = g W8^T.  In float32 that is the gradient of what the 8 bits stand for.  In integers g
is rounded as the forward pass rounds x, with a scale for each row:  g[t] = s[t] g8[t], s[t] = max |g[t]| / 127.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

from edgepeft.device.host.machine import saturates_in_8_bits
from edgepeft.graph.gradient.rule import INTEGER_PRODUCT, Gradients, Rule, Visit

__all__ = ["RULES"]

_MIDDLE, _LARGEST = 128, 127


def _integer_product(at: Visit) -> Gradients:
    _, matrix, scale = at.node.input
    g = at.op("Mul", at.dy, scale)
    if at.attributes["backward"] == b"fp32":
        yield 0, at.op("Gemm", g, at.op("Cast", matrix, to=TensorProto.FLOAT), transB=1)
    else:
        yield 0, _in_integers(at, g, matrix)


def _in_integers(at: Visit, g: str, matrix: str) -> str:
    """(T, out) -> (T, in)."""
    op, last = at.op, at.tape.ints(-1)
    largest = op("ReduceMax", op("Abs", g), last, keepdims=0)
    step = op("Max", op("Mul", largest, at.number(1 / _LARGEST)), at.number(1e-30))  # (T); of a row of zeros
    middle = at.tape.constant(_MIDDLE, TensorProto.UINT8)
    rounded = op("QuantizeLinear", g, step, op("Expand", middle, op("Shape", step)), axis=0)
    factor, zero = _as_it_lies(at, g, matrix), list[str]()
    if saturates_in_8_bits():  # products of two uint8 are exact there; of constants ONNX Runtime sees to that itself
        shifted = op("Add", op("Cast", factor, to=TensorProto.INT32), at.tape.constant(_MIDDLE, TensorProto.INT32))
        factor, zero = op("Cast", shifted, to=TensorProto.UINT8), [middle]
    product = op("MatMulInteger", rounded, op("Transpose", factor, perm=[1, 0]), middle, *zero)
    return op("Mul", op("Cast", product, to=TensorProto.FLOAT), op("Unsqueeze", step, last))


def _as_it_lies(at: Visit, g: str, matrix: str) -> str:
    """The matrix by a shape that is only known in a run: of a constant, ONNX Runtime would keep a transposed copy."""
    sizes = [extent[0] for extent in at.tape.extents(matrix)]
    nothing = at.op("Mul", at.op("Shape", g), at.tape.ints(0, 0))
    return at.op("Reshape", matrix, at.op("Add", nothing, at.tape.ints(*sizes)))


RULES: Mapping[str, Rule] = {INTEGER_PRODUCT: _integer_product}

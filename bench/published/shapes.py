"""Building blocks of shape lists: convolutions, matrix products and what stands between them, batch 1, fp32.

Biases, batch norms and activations are fused into convolutions by the runtimes that were measured.
"""

from __future__ import annotations

from edgepeft.common.operators import OperatorClass, Work

_FLOAT = 4  # bytes


def convolution(
    name: str, channels: tuple[int, int], size: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Work:
    """``channels`` in and out, a square output of ``size``: 2 size^2 out (in / groups) kernel^2 FLOPs."""
    inputs, outputs = channels
    weights = outputs * (inputs // groups) * kernel * kernel
    kind = OperatorClass.CONV
    if kernel == stride and kernel > 1:
        kind = OperatorClass.MATRIX  # patches that do not overlap: one product
    elif groups > 1:
        kind = OperatorClass.CONV_DEPTHWISE
    elif (kernel, stride) == (3, 1):
        kind = OperatorClass.CONV_3X3
    read = _FLOAT * (inputs * (size * stride) ** 2 + weights)
    return Work(name, "Conv", kind, 2 * size * size * weights, read, _FLOAT * outputs * size**2, _FLOAT * weights)


def matrix(name: str, rows: int, inner: int, columns: int, *, times: int = 1, weights: bool = True) -> Work:
    """``times`` products of [rows, inner] with [inner, columns]; ``weights``: the second is a weight."""
    second = _FLOAT * times * inner * columns
    read, written = _FLOAT * times * rows * inner + second, _FLOAT * times * rows * columns
    flops = 2 * times * rows * inner * columns
    return Work(name, "MatMul", OperatorClass.MATRIX, flops, read, written, second if weights else 0)


def moved(name: str, op: str, kind: OperatorClass, elements: int, flops: int, *, inputs: int = 1) -> Work:
    """An operator on ``elements`` numbers of each of ``inputs`` values, ``flops`` for each."""
    return Work(name, op, kind, flops * elements, _FLOAT * inputs * elements, _FLOAT * elements)

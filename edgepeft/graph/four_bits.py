"""Passes: a projection's matrix in 4 bits, written in standard operators, and as ONNX Runtime's own product of one.

Each 32 neighbours of a row of W [out, in] are a group g with a scale of its own; m is its value of largest magnitude.
Of several steps s the one with the least squared error of W stays, as llama.cpp's ``make_qx_quants`` searches them:

    q[g] = clip(round(W[g] s / -m), -8, 7)        scale[g] = sum W[g] q[g] / sum q[g]^2        W ~ scale q

W4 = q + 8 is stored.  On MiniLM the error is 5 % less than with s = 8 and its own scale alone (Q4_0).

In a bundle ``DequantizeLinear`` gives the matrix, under its own name, to the ``Gemm`` that read it before.  When a
session opens, the two become a ``MatMulNBits``, which reads the same bytes and never has the matrix in float32.  It
rounds each 32 numbers of x to 8 bits too where the processor multiplies these (``accuracy_level`` 4): far less is lost
by that than by the 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.checkpoint import Checkpoint, Quantised
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.protos import attributes, writers

__all__ = ["OPSET", "ZERO", "can_pack", "in_four_bits", "lower_four_bits", "unpacking"]

OPSET = 21  # the first that has 4 bits, and scales of groups
_MIDDLE, _HIGHEST = 8, 15  # the number that stands for 0; as the constant that a graph has of it:
ZERO = numpy_helper.from_array(np.array(_MIDDLE, np.uint8), "zero_of_4_bits")
_GROUP = 32
_STEPS = (7.0, 7.5, 8.0, 8.5, 9.0)  # of the largest value that are tried
_DOMAIN = "com.microsoft"


def can_pack(matrix: NDArray[np.float32]) -> bool:
    """Whether its rows are whole groups."""
    return bool(matrix.shape[1] % _GROUP == 0)


def in_four_bits(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Pairs of numbers [out, in / 2] and scales [out, in / 32] of a matrix [out, in]; a group of zeros has scale 1."""
    groups = matrix.reshape(len(matrix), -1, _GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2, keepdims=True), axis=2)
    least, best, scales = np.full(largest.shape, np.inf, np.float32), np.zeros_like(groups), np.ones_like(largest)
    for steps in _STEPS:
        scale = largest / np.float32(-steps)
        scale[scale == 0] = 1
        numbers = np.clip(np.rint(groups / scale), -_MIDDLE, _HIGHEST - _MIDDLE)
        scale = (groups * numbers).sum(2, keepdims=True) / np.maximum((numbers**2).sum(2, keepdims=True), 1)
        error = ((scale * numbers - groups) ** 2).sum(2, keepdims=True)
        better = error < least
        least, best, scales = (np.where(better, *each) for each in ((error, least), (numbers, best), (scale, scales)))
    scales[scales == 0] = 1
    stored = (best + _MIDDLE).astype(np.uint8).reshape(len(matrix), -1)
    return stored[:, ::2] | stored[:, 1::2] << np.uint8(4), scales[..., 0]


def unpacking(stored: Quantised, checkpoint: Checkpoint, written: set[str]) -> Iterator[onnx.NodeProto]:
    """Nodes that make a packed matrix's float32 values, under its name; what is ``written`` already is left out."""
    zeros = f"zeros:{'x'.join(map(str, checkpoint.tensors[stored.scale].shape))}"
    nodes = [
        helper.make_node("Shape", [stored.scale], [f"{zeros}:shape"]),
        helper.make_node("Expand", [ZERO.name, f"{zeros}:shape"], [f"{zeros}:bytes"]),
        helper.make_node("Cast", [f"{zeros}:bytes"], [zeros], to=TensorProto.UINT4),
        helper.make_node(
            "DequantizeLinear", [stored.packed, stored.scale, zeros], [stored.tensor], axis=1, block_size=_GROUP
        ),
    ]
    for node in nodes:
        if node.output[0] not in written:
            written.add(node.output[0])
            yield node


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def lower_four_bits(model: onnx.ModelProto, accuracy_level: int) -> None:
    """Rewrite a spliced graph's products with packed matrices; a matrix that others read is unpacked for them still."""
    graph, writer = model.graph, writers(model.graph)
    packed = {
        each.name: each for each in graph.initializer if each.data_type == TensorProto.UINT4 and len(each.dims) == 2
    }
    lowered: dict[str, onnx.NodeProto] = {}  # what unpacks a matrix, by the name of what it reads
    for node in graph.node:
        unpacked = writer.get(node.input[1]) if node.op_type == "Gemm" and len(node.input) == 2 else None
        if unpacked is None or unpacked.op_type != "DequantizeLinear" or attributes(node) != {"transB": 1}:
            continue
        if unpacked.input[0] not in packed or attributes(unpacked).get("block_size") != _GROUP:
            continue
        matrix, scale = unpacked.input[:2]
        out, width = packed[matrix].dims
        lowered[matrix] = unpacked
        product = helper.make_node(
            "MatMulNBits", [node.input[0], matrix, scale], node.output, node.name, domain=_DOMAIN
        )
        sizes = {"K": width, "N": out, "bits": 4, "block_size": _GROUP, "accuracy_level": accuracy_level}
        product.attribute.extend(helper.make_attribute(name, value) for name, value in sizes.items())
        node.CopyFrom(product)
    if not lowered:
        return
    for matrix, unpacked in lowered.items():  # the same bytes, by another name and type
        unpacked.input[0] = f"{matrix}:numbers"
        graph.initializer.add().CopyFrom(packed[matrix])
        graph.initializer[-1].name = unpacked.input[0]
        out, width = packed[matrix].dims
        packed[matrix].data_type, packed[matrix].dims[:] = TensorProto.UINT8, [out, width // _GROUP, _GROUP // 2]
    prune(graph)
    if all(each.domain != _DOMAIN for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))

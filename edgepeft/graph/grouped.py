"""Passes: a matrix in groups of 4 or 8 bits, written in standard operators, and as ONNX Runtime's own product of one.

Each 32 neighbours of a row of W [out, in] are a group g with a scale of its own; m is its value of largest magnitude.
In 8 bits, for decoders, whose activations have outliers that a scale a row of x does not bear:

    q[g] = round(127 W[g] / |m|)        scale[g] = |m| / 127        W ~ scale q,        q + 128 is stored

In 4 bits, of several steps s the one with the least squared error of W stays, as llama.cpp's ``make_qx_quants`` has it:

    q[g] = clip(round(W[g] s / -m), -8, 7)        scale[g] = sum W[g] q[g] / sum q[g]^2        W ~ scale q

W4 = q + 8 is stored.  On MiniLM the error is 5 % less than with s = 8 and its own scale alone (Q4_0).

In a bundle ``DequantizeLinear`` gives the matrix, under its own name, to the ``Gemm`` that read it before, and rows of
a table past their lookup.  When a session opens, it and a ``Gemm`` become a ``MatMulNBits``, which reads the same bytes
and never has the matrix in float32.  It rounds each 32 numbers of x to 8 bits too where the processor multiplies these
(``accuracy_level`` 4): less is lost by that than by the 4 bits.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.checkpoint import Checkpoint, Quantised
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import grouped_name
from edgepeft.graph.protos import CONTRIB, attributes, use_contrib, writers

OPSET_OF_GROUPS = 21  # the first that has 4 bits, and scales of groups
_MIDDLE, _HIGHEST = 8, 15  # of 4 bits, the number that stands for 0
_MIDDLE_BYTE, _LARGEST = 128, 127
# What a graph has of both as constants.
ZEROS = (
    numpy_helper.from_array(np.array(_MIDDLE, np.uint8), "zero_of_4_bits"),
    numpy_helper.from_array(np.array(_MIDDLE_BYTE, np.uint8), "zero_of_8_bits"),
)
GROUP = 32
_STEPS = (7.0, 7.5, 8.0, 8.5, 9.0)  # of the largest value that are tried


def in_eight_bits(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Numbers [out, in] and scales [out, in / 32] of a matrix [out, in]; a group of zeros has scale 1."""
    groups = matrix.reshape(len(matrix), -1, GROUP)
    scales = np.abs(groups).max(axis=2, keepdims=True) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    numbers = np.rint(groups / scales) + _MIDDLE_BYTE
    return numbers.astype(np.uint8).reshape(matrix.shape), scales[..., 0]


def in_four_bits(matrix: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Pairs of numbers [out, in / 2] and scales [out, in / 32] of a matrix [out, in]; a group of zeros has scale 1.

    Groups that had 4 bits before in this form (GGUF's Q4_0) keep their values to the last digit.
    """
    groups = matrix.reshape(len(matrix), -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2, keepdims=True), axis=2)
    least, best, scales = np.full(largest.shape, np.inf, np.float32), np.zeros_like(groups), np.ones_like(largest)
    for steps in _STEPS:
        scale = largest / np.float32(-steps)
        scale[scale == 0] = 1
        numbers = np.clip(np.rint(groups / scale), -_MIDDLE, _HIGHEST - _MIDDLE)
        fits = (scale * numbers == groups).all(axis=2, keepdims=True)
        nearest = (groups * numbers).sum(2, keepdims=True) / np.maximum((numbers**2).sum(2, keepdims=True), 1)
        scale = np.where(fits, scale, nearest)
        error = ((scale * numbers - groups) ** 2).sum(2, keepdims=True)
        better = error < least
        least, best, scales = (np.where(better, *each) for each in ((error, least), (numbers, best), (scale, scales)))
    scales[scales == 0] = 1
    stored = (best + _MIDDLE).astype(np.uint8).reshape(len(matrix), -1)
    return stored[:, ::2] | stored[:, 1::2] << np.uint8(4), scales[..., 0]


def unpacking(stored: Quantised, checkpoint: Checkpoint, written: set[str]) -> Iterator[onnx.NodeProto]:
    """Nodes that make a grouped matrix's float32 values, under its name; what is ``written`` already is left out."""
    packed = stored.packed in checkpoint.tensors
    zeros = f"zeros{'' if packed else ':bytes'}:{'x'.join(map(str, checkpoint.tensors[stored.scale].shape))}"
    source, zero, bytes_ = (stored.packed, ZEROS[0], f"{zeros}:bytes") if packed else (stored.bytes, ZEROS[1], zeros)
    nodes = [
        helper.make_node("Shape", [stored.scale], [f"{zeros}:shape"]),
        helper.make_node("Expand", [zero.name, f"{zeros}:shape"], [bytes_]),
        *([helper.make_node("Cast", [bytes_], [zeros], to=TensorProto.UINT4)] if packed else []),
        helper.make_node("DequantizeLinear", [source, stored.scale, zeros], [stored.tensor], axis=1, block_size=GROUP),
    ]
    new = [node for node in nodes if node.output[0] not in written]
    written.update(node.output[0] for node in new)
    yield from new


def rows_of_groups(stored: Quantised, index: str, output: str) -> list[onnx.NodeProto]:
    """Nodes that look rows up in a table of bytes: int64 (T) -> (T, d)."""
    numbers, scale, zeros = f"{output}:bytes", f"{output}:scale", f"{output}:zeros"
    return [
        helper.make_node("Gather", [stored.bytes, index], [numbers]),
        helper.make_node("Gather", [stored.scale, index], [scale]),
        helper.make_node("Shape", [scale], [f"{zeros}:shape"]),
        helper.make_node("Expand", [ZEROS[1].name, f"{zeros}:shape"], [zeros]),
        helper.make_node("DequantizeLinear", [numbers, scale, zeros], [output], name=output, axis=1, block_size=GROUP),
    ]


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def lower_groups(model: onnx.ModelProto, accuracy_level: int) -> None:
    """Rewrite a spliced graph's products with grouped matrices; what others read is unpacked for them still."""
    graph, writer = model.graph, writers(model.graph)
    bits = {TensorProto.UINT4: 4, TensorProto.UINT8: 8}
    grouped = {each.name: each for each in graph.initializer if each.data_type in bits and len(each.dims) == 2}
    lowered: dict[str, onnx.NodeProto] = {}  # what unpacks a matrix, by the name of what it reads
    for node in graph.node:
        unpacked = writer.get(node.input[1]) if node.op_type == "Gemm" and len(node.input) == 2 else None
        if unpacked is None or unpacked.op_type != "DequantizeLinear" or attributes(node) != {"transB": 1}:
            continue
        if unpacked.input[0] not in grouped or attributes(unpacked).get("block_size") != GROUP:
            continue
        matrix, scale = unpacked.input[:2]
        out, width = grouped[matrix].dims
        lowered[matrix] = unpacked
        product = helper.make_node(
            "MatMulNBits", [node.input[0], grouped_name(matrix), scale], node.output, node.name, domain=CONTRIB
        )
        sizes = {"K": width, "N": out, "bits": bits[grouped[matrix].data_type], "block_size": GROUP}
        sizes["accuracy_level"] = accuracy_level
        product.attribute.extend(helper.make_attribute(name, value) for name, value in sizes.items())
        node.CopyFrom(product)
    if not lowered:
        return
    for matrix in lowered:  # the same bytes, by another name and shape, for lookups and deltas may read the matrix too
        same = graph.initializer.add()
        same.CopyFrom(grouped[matrix])
        same.name, (out, width) = grouped_name(matrix), same.dims
        in_each = GROUP * bits[same.data_type] // 8
        same.data_type, same.dims[:] = TensorProto.UINT8, [out, width // GROUP, in_each]
    prune(graph)
    use_contrib(model)

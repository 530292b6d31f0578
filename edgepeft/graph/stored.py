"""What a graph reads of the weights file, and in how many bytes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from edgepeft.graph.protos import followed, writers
from edgepeft.graph.shapes import Spec

__all__ = ["mapped_bytes", "matrices_read", "packed_bytes", "stored_bytes"]

_PRODUCTS, _SAME = {"Gemm", "MatMul", "MatMulInteger"}, {"Identity", "Transpose", "Cast"}


def packed_bytes(graph: onnx.GraphProto) -> int:
    """Of the matrices of the weights file, once for each product that reads them."""
    stored = stored_bytes(graph)
    return sum(stored.get(name, 0) for name in matrices_read(graph))


def mapped_bytes(graph: onnx.GraphProto) -> int:
    """Of the matrices of the weights file that some product reads, each once."""
    stored = stored_bytes(graph)
    return sum(stored.get(name, 0) for name in set(matrices_read(graph)))


def stored_bytes(graph: onnx.GraphProto) -> dict[str, int]:
    """Of each tensor of the weights file that the graph names."""
    return {
        tensor.name: Spec(tensor.data_type, tuple(tensor.dims)).n_bytes
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def matrices_read(graph: onnx.GraphProto) -> Iterator[str]:
    """What products read, by name: once for each of them, whatever it is transposed by."""
    writer = writers(graph)
    for node in graph.node:
        if node.op_type in _PRODUCTS:
            for operand in node.input[:2]:
                yield followed(operand, writer, _SAME)[-1]

"""Hidden states that depend on no trained tensor: what the backbone's maps and norms give, and what maps read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import onnx

from edgepeft.graph.protos import ancestors, followed, reads, writers

__all__ = ["frozen_states", "live_values", "lowest_states"]

_PRODUCTS = {"Gemm", "MatMul", "MatMulInteger"}
_SAME = {"Identity", "Reshape"}
_SHAPES = {"Shape", "Size"}  # what they give does not depend on the values that they read


def live_values(graph: onnx.GraphProto, changing: Iterable[str]) -> set[str]:
    """Values that depend on ``changing`` ones, these included.  Needs sorted nodes, as ``prune`` leaves them."""
    live = set(changing)
    for node in graph.node:
        if node.op_type not in _SHAPES and not live.isdisjoint(reads(node)):
            live.update(node.output)
    return live


def frozen_states(graph: onnx.GraphProto, live: Container[str], tensors: Container[str]) -> set[str]:
    """Those that are not live; ``tensors`` are the checkpoint's."""
    writer = writers(graph)
    states = {node.output[0] for node in graph.node if _has_bias(node, tensors) and node.output[0] not in live}
    for node in graph.node:
        if _has_matrix(node, writer, tensors) and node.input[0] not in live:
            states.update({node.input[0]} if states.isdisjoint(followed(node.input[0], writer, _SAME)) else ())
    return states


def lowest_states(graph: onnx.GraphProto, live: Container[str], states: Container[str]) -> tuple[str, ...]:
    """Those of ``states`` from which everything live follows without a product below it being computed again.

    None where nothing but the embeddings stands below what is live.  Needs a graph without unused nodes.
    """
    writer = writers(graph)
    changed = [node for node in graph.node if any(value in live for value in node.output)]
    edge = [value for node in changed for value in reads(node) if value not in live]
    below = ancestors(edge, writer, {value for value in writer if value in states})
    met = {value for node in below for value in reads(node)} | set(edge)
    order = [value for node in graph.node for value in node.output if value in met and value in states]
    kept = set(order)
    for value in reversed(order):  # what follows from the others by sums and norms alone need not be kept
        if not any(node.op_type in _PRODUCTS for node in ancestors([value], writer, kept - {value})):
            kept.remove(value)
    return tuple(value for value in order if value in kept)


def _has_bias(node: onnx.NodeProto, tensors: Container[str]) -> bool:
    """Whether it adds a bias of the checkpoint."""
    if node.op_type in ("Gemm", "LayerNormalization"):
        return len(node.input) == 3 and node.input[2] in tensors
    return node.op_type == "Add" and any(name in tensors for name in node.input)


def _has_matrix(node: onnx.NodeProto, writer: Mapping[str, onnx.NodeProto], tensors: Container[str]) -> bool:
    """Whether it multiplies by a matrix of the checkpoint, forwards: [in, out]."""
    return node.op_type == "Gemm" and followed(node.input[1], writer, {"Transpose"})[-1] in tensors

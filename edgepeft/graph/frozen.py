"""Hidden states that depend on no trained tensor, identified by the weights around them.

A training graph and the deployed one know a value by different names, and lay it out differently: padded [batch,
length, d] or [batch length, d] there, packed [tokens, d] here.  What both have in common is the checkpoint's
tensors.  So a hidden state is called ``after:<bias>``, the result of a linear map or a norm with that bias, or
``before:<weight>``, the operand of a linear map with that matrix.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import onnx

from edgepeft.graph.protos import ancestors, followed, reads, writers
from edgepeft.graph.shapes import Spec

__all__ = ["frozen_states", "live_values", "lowest_states"]

_PRODUCTS = {"Gemm", "MatMul"}
_SAME = {"Identity", "Reshape"}
_SHAPES = {"Shape", "Size"}  # what they give does not depend on the values that they read


def live_values(graph: onnx.GraphProto, changing: Iterable[str]) -> set[str]:
    """Values that depend on ``changing`` ones, these included.  Needs sorted nodes, as ``prune`` leaves them."""
    live = set(changing)
    for node in graph.node:
        if node.op_type not in _SHAPES and not live.isdisjoint(reads(node)):
            live.update(node.output)
    return live


def frozen_states(
    graph: onnx.GraphProto, live: Container[str], tensors: Container[str], specs: Mapping[str, Spec] | None = None
) -> dict[str, str]:
    """State -> value, for those that are not live; ``tensors`` are the checkpoint's.

    With ``specs``, what a linear map reads is followed up to where it still has batch and length, for others read it
    there.
    """
    writer = writers(graph)
    states: dict[str, str | None] = {}
    for node in graph.node:
        bias = _bias(node, tensors)
        if bias is not None and node.output[0] not in live:
            state, value = f"after:{bias}", node.output[0]
            # A norm that a delta runs a second time gives two values of one name; neither is it then.
            states[state] = value if states.get(state, value) == value else None
    known = set(states.values())
    for node in graph.node:
        weight = _matrix(node, writer, tensors)
        if weight is None or node.input[0] in live:
            continue
        chain = followed(node.input[0], writer, _SAME)
        if known.isdisjoint(chain):
            padded = [value for value in chain if specs and value in specs and len(specs[value].shape) == 3]
            states[f"before:{weight}"] = padded[-1] if padded else chain[0]
    return {state: value for state, value in states.items() if value is not None}


def lowest_states(graph: onnx.GraphProto, live: Container[str], states: Mapping[str, str]) -> tuple[str, ...]:
    """Those of ``states`` from which everything live follows without a product below it being computed again.

    None where nothing but the embeddings stands below what is live.  Needs a graph without unused nodes.
    """
    writer, by_value = writers(graph), {value: state for state, value in states.items()}
    changed = [node for node in graph.node if any(value in live for value in node.output)]
    edge = [value for node in changed for value in reads(node) if value not in live]
    kept = {value for node in ancestors(edge, writer, set(by_value)) for value in reads(node)} | set(edge)
    kept &= by_value.keys()
    order = [value for node in graph.node for value in node.output if value in kept]
    for value in reversed(order):  # what follows from the others by sums and norms alone need not be kept
        if not any(node.op_type in _PRODUCTS for node in ancestors([value], writer, kept - {value})):
            kept.remove(value)
    return tuple(by_value[value] for value in order if value in kept)


def _bias(node: onnx.NodeProto, tensors: Container[str]) -> str | None:
    if node.op_type in ("Gemm", "LayerNormalization") and len(node.input) == 3:
        return node.input[2] if node.input[2] in tensors else None
    if node.op_type != "Add":
        return None
    return next((name for name in node.input if name in tensors), None)


def _matrix(node: onnx.NodeProto, writer: Mapping[str, onnx.NodeProto], tensors: Container[str]) -> str | None:
    """The checkpoint's matrix that the node multiplies by, forwards: [in, out]."""
    if node.op_type != "Gemm":
        return None
    name = followed(node.input[1], writer, {"Transpose"})[-1]
    return name if name in tensors else None

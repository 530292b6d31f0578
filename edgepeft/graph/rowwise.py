"""Which operators make a row of their result from the same row of what they read, in a graph of packed tokens.

It follows from the extents that ONNX infers: beside a result whose first axis counts rows, an operand's first axis
counts them too where it is open, for what is repeated over the rows has a first extent of one, or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper, shape_inference

from edgepeft.graph.protos import attributes, constant

__all__ = ["Extents", "extents", "row_operands"]

Extents = tuple[int | None, ...]  # of a value's axes; None where it is known in a run only

_SMALL = 64  # numbers of an integer constant from which extents may follow


def extents(model: onnx.ModelProto) -> dict[str, Extents]:
    """Of every value whose rank ONNX can tell.  No weight is copied."""
    graph = model.graph
    small = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT64 and math.prod(t.dims) <= _SMALL}
    others = [t for t in graph.initializer if t.name not in small]
    inputs = [*graph.input, *(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in others)]
    light = helper.make_graph(graph.node, graph.name, inputs, graph.output, list(small.values()))
    whole = helper.make_model(light, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(whole)
    inferred = shape_inference.infer_shapes(whole, data_prop=True).graph
    sizes: dict[str, Extents] = {name: tuple(tensor.dims) for name, tensor in small.items()}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            sizes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return sizes


def row_operands(node: onnx.NodeProto, graph: onnx.GraphProto, sizes: Mapping[str, Extents]) -> list[str] | None:
    """What a node reads row by row, where the first axis of its result counts rows; ``sizes`` are the ``extents``.

    None where a row of the result may depend on more than its own.
    """
    values, rule = [name for name in (*node.input, *node.output) if name], _RULES.get(node.op_type)
    if rule is None or len(node.output) > 1 or any(name not in sizes for name in values):
        return None
    at = _At(node, graph, [sizes[name] if name else () for name in node.input], sizes[node.output[0]])
    if not _is_open(at.result) or not rule(at):
        return None
    return list(dict.fromkeys(name for name in node.input if name and _is_open(sizes[name])))


class _At(NamedTuple):
    """A node and the extents around it."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    operands: list[Extents]
    result: Extents


def _is_open(size: Extents) -> bool:
    return size[:1] == (None,)


def _fit(at: _At, *sizes: Extents) -> bool:
    """Whether each has the rows of the result, or is the same for every row."""
    rank = len(at.result)
    return all(
        len(size) == rank if _is_open(size) else None not in size and (len(size) < rank or size[0] == 1)
        for size in sizes
    )


def _elementwise(at: _At) -> bool:
    return _fit(at, *at.operands)


def _product(at: _At) -> bool:
    """Rows times one matrix for all of them."""
    a, b, *others = at.operands
    return _is_open(a) and not attributes(at.node).get("transA") and len(b) == 2 and None not in b and _fit(at, *others)


def _along_axis(at: _At) -> bool:
    """By an attribute, the last axis where it is not given."""
    first, *others = at.operands
    return _spare_rows([attributes(at.node).get("axis", -1)], first) and not any(None in size for size in others)


def _joined(at: _At) -> bool:
    return all(_spare_rows([attributes(at.node)["axis"]], size) for size in at.operands)


def _picked(at: _At) -> bool:
    """By indices that are the same for every row."""
    first, index = at.operands
    return _spare_rows([attributes(at.node).get("axis", 0)], first) and not _is_open(index) and None not in index


def _turned(at: _At) -> bool:
    return list(attributes(at.node).get("perm", ())[:1]) == [0]


def _along_axes(position: int) -> Callable[[_At], bool]:
    """By a constant operand; they are the result's, or the first operand's, whichever has more."""

    def rule(at: _At) -> bool:
        axes = constant(at.graph, at.node.input[position]) if len(at.node.input) > position else None
        given = [] if axes is None or axes.dtype.kind != "i" else axes.reshape(-1).tolist()
        return _is_open(at.operands[0]) and _spare_rows(given, max(at.operands[0], at.result, key=len))

    return rule


def _spare_rows(axes: Sequence[int], size: Extents) -> bool:
    """Whether these are axes of what has rows, and do not count them."""
    return _is_open(size) and bool(axes) and all(axis % len(size) for axis in axes)


_RULES: Mapping[str, Callable[[_At], bool]] = {
    **dict.fromkeys(("Add", "And", "Cast", "CastLike", "Clip", "Div", "Equal", "Exp", "Gelu", "Greater"), _elementwise),
    **dict.fromkeys(("GreaterOrEqual", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Max", "Mish"), _elementwise),
    **dict.fromkeys(("Mod", "Mul", "Not", "Relu", "Sigmoid", "Sub", "Tanh", "Where"), _elementwise),
    **dict.fromkeys(("Gemm", "MatMul"), _product),
    **dict.fromkeys(("LayerNormalization", "Softmax"), _along_axis),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum", "Squeeze", "Unsqueeze"), _along_axes(1)),
    "Concat": _joined,
    "Gather": _picked,
    "Slice": _along_axes(3),
    "Transpose": _turned,
}

"""FLOPs and bytes of every operator of a graph, for given inputs; ``docs/cost.md`` has the table.

MatMul, Gemm and Conv are exact: two operations for each multiply-add, a bias not counted (as torch's FlopCounterMode).
The rest follows a count per element.  An operator reads each input and writes each output once; a gather reads what it
gives; views, shapes and what follows from constants alone, which is folded at load, cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray

from edgepeft.common.operators import OperatorClass, Work
from edgepeft.graph.protos import attributes
from edgepeft.graph.shapes import Spec, walk

__all__ = ["PER_ELEMENT", "Costs", "count_run"]

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "Conv", "ConvInteger", "Einsum"}
_VIEWS = {"Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
# Read what they give, not the whole of what they pick from.
_PICKS = {"Gather", "GatherElements", "GatherND", "Slice", "Expand"}
_MOVES = _PICKS | {
    *("Concat", "ConstantOfShape", "DepthToSpace", "NonZero", "OneHot", "Pad", "Range", "ScatterElements", "ScatterND"),
    *("Split", "Tile", "Transpose", "Trilu"),
}
_CLASSES = {
    OperatorClass.MATRIX: _PRODUCTS,
    OperatorClass.NORM: {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"},
    OperatorClass.SOFTMAX: {"Softmax", "LogSoftmax"},
    OperatorClass.MOVE: _MOVES,
}

# Of each number of the output: one for an arithmetic operation, a comparison or an elementary function.
_ELEMENTWISE = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Neg", "Abs", "Sign", "Relu", "Pow"), 1),
    **dict.fromkeys(("Sqrt", "Exp", "Log", "Erf", "Tanh", "Sin", "Cos", "Reciprocal", "Floor", "Ceil", "Round"), 1),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), 1),
    **dict.fromkeys(("And", "Or", "Not", "Xor", "Where", "Cast", "IsNaN", "IsInf", "BitShift", "Dropout"), 0),
    "Clip": 2,
    "LeakyRelu": 2,
    "Sigmoid": 4,  # negate, exp, add, divide
    "HardSigmoid": 4,
    "Swish": 5,
    "Gelu": 5,  # divide by sqrt 2, erf, add 1, times x, halve; the tanh form's polynomial is counted as the same
    "DynamicQuantizeLinear": 7,  # smallest, largest, divide, round, add, clip to two ends
    "QuantizeLinear": 5,
    "DequantizeLinear": 2,
}
# Of each number of the input.
_REDUCTIONS = {
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin", "CumSum"), 1
    ),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), 2),
    "TopK": 1,
    "GlobalAveragePool": 1,
    "Softmax": 5,  # largest, subtract, exp, sum, divide
    "LogSoftmax": 5,
    "LayerNormalization": 7,  # mean, subtract, square, mean, divide, scale, shift
    "RMSNormalization": 4,
    "SimplifiedLayerNormalization": 4,
}
PER_ELEMENT: Mapping[str, int] = {**_ELEMENTWISE, **_REDUCTIONS, **dict.fromkeys(sorted(_MOVES), 0)}


class Costs(NamedTuple):
    """Of each node in order; ``unknown`` are operators that the table does not have: their FLOPs are not counted."""

    works: tuple[Work, ...]
    unknown: tuple[str, ...]


def count_run(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any] | Spec]) -> Costs:
    """Count one run; of an input that is given as a spec, no value is known."""
    specs, computed = walk(model, inputs)
    graph = model.graph
    weights = {initializer.name: specs[initializer.name].n_bytes for initializer in graph.initializer}
    for node in graph.node:  # a product reads 4-bit matrices as they are stored, see ``four_bits``
        if node.op_type == "DequantizeLinear" and specs[node.input[0]].kind == onnx.TensorProto.UINT4:
            weights[node.output[0]] = sum(weights[name] for name in node.input[:2])
    fed = set(inputs)
    works, unknown = [], set()
    for node in graph.node:
        constant = fed.isdisjoint(node.input)
        if not constant:
            fed.update(node.output)
        follows = all(name in computed for name in node.output if name)
        kind = _class_of(node, specs, constant=constant, follows=follows)
        flops = 0
        if kind not in (OperatorClass.NONE, OperatorClass.INDEX):
            flops = _flops(node, specs)
            if node.op_type not in _PRODUCTS and node.op_type not in PER_ELEMENT:
                unknown.add(node.op_type)
        works.append(_work(node, specs, kind, flops, weights))
    return Costs(tuple(works), tuple(sorted(unknown)))


def _class_of(node: onnx.NodeProto, specs: Mapping[str, Spec], *, constant: bool, follows: bool) -> OperatorClass:
    op = node.op_type
    if constant or op in _VIEWS:
        return OperatorClass.NONE
    if follows:
        return OperatorClass.INDEX
    if op in {"Conv", "ConvInteger"}:
        kernel = specs[node.input[1]].shape
        given = attributes(node)
        strides = given.get("strides", [1] * len(kernel[2:]))
        if tuple(strides) == kernel[2:] and math.prod(strides) > 1:
            return OperatorClass.MATRIX  # patches that do not overlap: one product
        if given.get("group", 1) > 1:
            return OperatorClass.CONV_DEPTHWISE
        return OperatorClass.CONV_3X3 if kernel[2:] == (3, 3) and set(strides) == {1} else OperatorClass.CONV
    return next((kind for kind, ops in _CLASSES.items() if op in ops), OperatorClass.ELEMENTWISE)


def _flops(node: onnx.NodeProto, specs: Mapping[str, Spec]) -> int:
    op, first, output = node.op_type, specs[node.input[0]].shape, specs[node.output[0]].shape
    if op in {"MatMul", "MatMulInteger"}:
        return 2 * math.prod(output) * first[-1]
    if op == "Gemm":
        return 2 * math.prod(output) * first[0 if attributes(node).get("transA") else 1]
    if op in {"Conv", "ConvInteger"}:
        return 2 * math.prod(output) * math.prod(specs[node.input[1]].shape[1:])
    if op == "Einsum":
        # Two for each combination of indices; an ellipsis takes the largest extent.
        terms = attributes(node)["equation"].decode().replace(" ", "").partition("->")[0].split(",")
        extents: dict[str, int] = {}
        for term, name in zip(terms, node.input, strict=True):
            letters, shape = term.replace("...", ""), specs[name].shape
            named = shape[len(shape) - len(letters) :] if term.startswith("...") else shape
            for letter, extent in zip(letters, named, strict=False):
                extents[letter] = max(extents.get(letter, 1), extent)
            if "..." in term:
                extents["..."] = max(extents.get("...", 1), math.prod(shape[: len(shape) - len(letters)]))
        return 2 * math.prod(extents.values())
    # Integers are bookkeeping, not floating-point work; a comparison's output is not float, its input is.
    involved = [specs[name].kind for name in (*node.input, *node.output) if name]
    if not _FLOATS.intersection(involved):
        return 0
    return PER_ELEMENT.get(op, 0) * math.prod(first if op in _REDUCTIONS else output)


def _work(
    node: onnx.NodeProto, specs: Mapping[str, Spec], kind: OperatorClass, flops: int, weights: Mapping[str, int]
) -> Work:
    name = node.name or node.output[0]
    if kind is OperatorClass.NONE:
        return Work(name, node.op_type, kind, 0, 0, 0)
    written = sum(specs[output].n_bytes for output in node.output if output)
    inputs = [(given, weights.get(given, specs[given].n_bytes)) for given in node.input if given]
    if node.op_type in _PICKS:
        inputs[0] = (inputs[0][0], min(inputs[0][1], written))
    read = sum(n_bytes for _, n_bytes in inputs)
    own = sum(n_bytes for given, n_bytes in inputs if given in weights)
    return Work(name, node.op_type, kind, flops, read, written, own)

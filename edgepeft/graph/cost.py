"""FLOPs and bytes of every operator of a graph, for given inputs; ``docs/cost.md`` has the table.

MatMul, Gemm and Conv are exact: two operations for each multiply-add, a bias not counted (as torch's FlopCounterMode).
The rest follows a count per element.  An operator reads each input and writes each output once; a gather reads what it
gives; views, shapes and what follows from constants alone, which is folded at load, cost nothing.

Memory: values live as ONNX Runtime has them: from the node that gives one to the last that reads it; Reshape and its
like give the same memory; elementwise operators write over an input without later readers; a transposed operand of a
product is a flag of the product.  Weights and inputs are not counted among them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray

from edgepeft.common.operators import OperatorClass, Work
from edgepeft.graph.protos import attributes, external_tensors, readers, reads, trace_back, writers
from edgepeft.graph.shapes import Spec, Walked

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "Conv", "ConvInteger", "Einsum"}
_SAME_MEMORY = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_VIEWS = _SAME_MEMORY | {"Constant", "Shape", "Size"}
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
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin"), 1),
    **dict.fromkeys(("CumSum", "TopK", "GlobalAveragePool"), 1),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), 2),
    "Softmax": 5,  # largest, subtract, exp, sum, divide
    "LogSoftmax": 5,
    "LayerNormalization": 7,  # mean, subtract, square, mean, divide, scale, shift
    "RMSNormalization": 4,
    "SimplifiedLayerNormalization": 4,
}
PER_ELEMENT: Mapping[str, int] = {**_ELEMENTWISE, **_REDUCTIONS, **dict.fromkeys(sorted(_MOVES), 0)}


class Costs(NamedTuple):
    """Work of each node, in order; FLOPs of ``unknown`` operators, which the table lacks, are not counted."""

    works: tuple[Work, ...]
    unknown: tuple[str, ...]


def count_run(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any] | Spec]) -> Costs:
    """Count one run; of an input that is given as a spec, no value is known."""
    walked = Walked(model, inputs)
    specs = walked.specs
    graph = model.graph
    weights = {initializer.name: specs[initializer.name].n_bytes for initializer in graph.initializer}
    for node in graph.node:  # a product reads these matrices as they are stored, see ``grouped``
        kinds = (onnx.TensorProto.UINT4, onnx.TensorProto.UINT8)
        if node.op_type == "DequantizeLinear" and specs[node.input[0]].kind in kinds and node.input[0] in weights:
            weights[node.output[0]] = sum(weights[name] for name in node.input[:2])
    fed = set(inputs)
    works, unknown = [], set()
    for node in graph.node:
        constant = fed.isdisjoint(node.input)
        if not constant:
            fed.update(node.output)
        follows = all(name in walked.values for name in node.output if name)
        kind = _class_of(node, specs, constant=constant, follows=follows)
        flops = 0
        if kind not in (OperatorClass.NONE, OperatorClass.INDEX):
            flops = _flops(node, specs)
            if node.op_type not in _PRODUCTS and node.op_type not in PER_ELEMENT:
                unknown.add(node.op_type)
        name = node.name or node.output[0]
        if kind is OperatorClass.NONE:
            works.append(Work(name, node.op_type, kind, 0, 0, 0))
            continue
        written = sum(specs[output].n_bytes for output in node.output if output)
        sizes = [(given, weights.get(given, specs[given].n_bytes)) for given in node.input if given]
        if node.op_type in _PICKS:
            sizes[0] = (sizes[0][0], min(sizes[0][1], written))
        read = sum(n_bytes for _, n_bytes in sizes)
        own = sum(n_bytes for given, n_bytes in sizes if given in weights)
        works.append(Work(name, node.op_type, kind, flops, read, written, own))
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


_FLOAT_PRODUCTS = {"Gemm", "MatMul"}
_MATRIX_PRODUCTS = _FLOAT_PRODUCTS | {"MatMulInteger"}
_IN_PLACE = {"Add", "Cast", "Div", "Erf", "Exp", "Gelu", "LogSoftmax", "Mul", "Neg", "Relu", "Softmax", "Sub", "Tanh"}
_SAME = {"Identity", "Transpose", "Cast", "DequantizeLinear"}  # what makes another form of a stored matrix


def peak_bytes(graph: onnx.GraphProto, specs: Mapping[str, Spec], *, in_place: bool = True) -> int:
    """Most bytes alive at once; without ``in_place`` each output has memory of its own."""
    run = _Run(graph, specs, in_place=in_place)
    for node in run.order:
        run.take(node)
    return run.most


class _Run:
    def __init__(self, graph: onnx.GraphProto, specs: Mapping[str, Spec], *, in_place: bool) -> None:
        self.specs, self.most, self._in_place = specs, 0, _IN_PLACE if in_place else set[str]()
        self._writer, self._readers = writers(graph), readers(graph)
        self._outputs = {output.name for output in graph.output}
        self.order = _depth_first([output.name for output in graph.output], self._writer)
        self._left = Counter(
            self._root(name) for node in self.order if not self._is_view(node) for name in set(reads(node))
        )
        self._left.update(self._root(name) for name in self._outputs)
        self._alive: dict[str, int] = {}

    def take(self, node: onnx.NodeProto) -> None:
        """Run one node."""
        if self._is_view(node) or node.op_type == "Constant":
            return
        roots = [self._root(name) for name in set(reads(node))]
        self._left.subtract(roots)
        done = {name for name in roots if not self._left[name] and name in self._alive}
        for name in filter(None, node.output):
            size = self.specs[name].n_bytes
            if node.op_type in self._in_place:
                over = next((old for old in done if self._alive[old] == size), None)
                if over is not None:
                    done.remove(over)
                    del self._alive[over]
            self._alive[name] = size
        self.most = max(self.most, sum(self._alive.values()))
        for name in (*done, *(name for name in node.output if not self._left[name])):
            self._alive.pop(name, None)

    def _is_view(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _SAME_MEMORY or self._is_flag(node)

    def _is_flag(self, node: onnx.NodeProto) -> bool:
        """A transposed operand of products alone, or of a further transposition."""
        name = node.output[0]
        if node.op_type != "Transpose" or name in self._outputs:
            return False
        return all(each.op_type in _FLOAT_PRODUCTS or self._is_flag(each) for each in self._readers.get(name, []))

    def _root(self, name: str) -> str:
        """The value whose memory this one is in."""
        while name in self._writer and self._is_view(self._writer[name]):
            name = self._writer[name].input[0]
        return name


def _depth_first(outputs: list[str], writer: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """ONNX Runtime's default order: what an output needs stands before it, and nothing else."""
    order: dict[int, onnx.NodeProto] = {}
    waiting: list[tuple[str, bool]] = [(name, False) for name in reversed(outputs)]
    while waiting:
        name, ready = waiting.pop()
        node = writer.get(name)
        if node is None or id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        waiting.append((name, True))
        waiting += [(read, False) for read in reversed(list(reads(node)))]
    return list(order.values())


def packed_bytes(graph: onnx.GraphProto, *, shared: bool = False) -> int:
    """Bytes of the weights file's matrices, once for each product that reads them, or once for all (``shared``)."""
    stored, read = stored_bytes(graph), list(matrices_read(graph))
    return sum(stored.get(name, 0) for name in (set(read) if shared else read))


def stored_bytes(graph: onnx.GraphProto) -> dict[str, int]:
    """Bytes of each tensor of the weights file that the graph names."""
    return {tensor.name: Spec(tensor.data_type, tuple(tensor.dims)).n_bytes for tensor in external_tensors(graph)}


def matrices_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of the matrices that products read, once for each product; transposed ones by their own name."""
    writer = writers(graph)
    for node in graph.node:
        if node.op_type in _MATRIX_PRODUCTS:
            for operand in node.input[:2]:
                yield trace_back(operand, writer, _SAME)[-1]

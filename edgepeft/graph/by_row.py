"""Passes: one session for rows of any tasks of a structure, and products of tokens that keep their axis of rows.

``by_row``: a task's values have an axis of rows in front.  A lowered decoder (``in_place``) runs N rows of S tokens.
What is fed of a task, one row's or every row's own:

    x A^T, [N S, K]  ->  [N, S, K] A_n^T [N or 1, K, r]        x v, [N S, d]  ->  [N, S, d] v_n [N or 1, 1, d]

Beside a part of the graph for each task (``mix``) there is one session with one packed copy of the backbone's matrices,
and the nodes are as many for four tasks as for one.  A factor behind a product goes into the matrix that is fed.

``keep_texts``: tokens stay [N, S, .] from layer to layer, where every product takes that form.  ``in_place`` and
``by_row`` reshape around what needs the axis of rows, [N S, .] -> [N, S, .] and back.  Norms, sums and ``MatMulNBits``
take either form, so nearly all of these go.  Of SmolLM2's step with LoRA at every linear layer 1,087 nodes of 1,522
stay, and it takes a tenth less time (one thread of a Xeon); the bare one 6 % less.

Letters: N rows, S tokens of each, K inputs, r rank, d width.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.text import IDS
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.in_place import OtherForm
from edgepeft.graph.names import LAST, TEXTS
from edgepeft.graph.parameters import StructuredTask
from edgepeft.graph.protos import attributes, constant, copied, floats, replace, values_read

_BY_ROW, _OF_TEXTS = "/by_row", "/of_texts"  # how values [N, S, .] end

_PRODUCTS = ("Gemm", "MatMul")
_PAIRS = ("Add", "Div", "Mul", "Sub")
_SINGLES = ("Cast", "Erf", "Gelu", "Identity", "Neg", "Relu", "Sigmoid", "Tanh")
_EACH = ("Add", "Div", "Gelu", "Mul", "Pow", "ReduceMean", "Sigmoid", "Sqrt", "Sub")
_OF_LAST_AXIS = ("Concat", "Split")
_FLAT_ONLY = ("Gemm", "MatMulInteger", "DynamicQuantizeMatMul")


@Contract(requires=[well_formed], ensures=[well_formed])
def by_row(structure: onnx.ModelProto, feeds: Mapping[str, NDArray[np.float32]]) -> StructuredTask | None:
    """Rewrite a structure for rows of several tasks; returns it with what this task feeds for each row, [1, ...].

    None where a value is read otherwise than as a matrix of a product or as a vector.
    """
    model = copied(structure)
    rewriter = _ByRow(model.graph, {name: values.shape for name, values in feeds.items()})
    try:
        for node in structure.graph.node:
            rewriter.take(node)
    except OtherForm:
        return None
    if rewriter.fed.keys() != feeds.keys():
        return None
    rewriter.write(model.graph)
    own = {name: values[None, None] for name, values in feeds.items()}  # [1, 1, d]
    for name, (transposed, factor) in rewriter.fed.items():
        if feeds[name].ndim > 1:
            turned = feeds[name].T if transposed else feeds[name]
            own[name] = np.ascontiguousarray(turned[None] * np.float32(factor))  # [1, K, r]
    return StructuredTask(model, own)


class _Forms:
    """Tracks in which forms values of tokens are given, in one pass over a sorted graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._wide: dict[str, str] = {}  # a value [N S, .] -> its form [N, S, .]
        self._flat: set[str] = set()  # those of them that a node gives as [N S, .] too

    def flat(self, value: str) -> None:
        """Have a node give the form [N S, .], under the value's own name."""
        if value in self._wide and value not in self._flat:
            self._flat.add(value)
            self.nodes.append(helper.make_node("Flatten", [self._wide[value]], [value], axis=2))

    def as_it_stands(self, node: onnx.NodeProto) -> None:
        """Write a node that reads forms [N S, .]."""
        for name in node.input:
            self.flat(name)
        self.nodes.append(node)

    def on_wide(self, node: onnx.NodeProto, inputs: Sequence[str], suffix: str) -> None:
        """Write a node on forms [N, S, .], whose results have that form, and end so."""
        new = copied(node)
        new.input[:], new.output[:] = inputs, [f"{output}{suffix}" for output in node.output]
        self._wide.update(zip(node.output, new.output, strict=True))
        self.nodes.append(new)


class _ByRow(_Forms):
    """Keeps a task's values [N, S, .] until something else reads them."""

    def __init__(self, graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.fed: dict[str, tuple[bool, float]] = {}  # how each is read: whether transposed, and times which factor
        self._shapes = shapes
        self._products: dict[str, str] = {}  # what a product gives -> the matrix that was fed
        self._sizes: set[int] = set()
        self._scalars = {t.name: t for t in graph.initializer if not t.dims and t.data_type == TensorProto.FLOAT}
        self._outputs = [output.name for output in graph.output]
        self._readers = values_read(graph)

    def take(self, node: onnx.NodeProto) -> None:
        fed = [name for name in node.input if name in self._shapes]
        if node.op_type in _PRODUCTS and len(fed) == 1:
            self._product(node)
        elif node.op_type in _PAIRS and len(fed) < 2:
            self._pair(node, fed)
        elif fed:
            raise OtherForm
        elif node.op_type in _SINGLES and self._is_wide(node.input[0]):
            self.on_wide(node, [self._wide[node.input[0]]], _BY_ROW)
        else:
            self.as_it_stands(node)

    def write(self, graph: onnx.GraphProto) -> None:
        for name in self._outputs:
            self.flat(name)
        replace(graph.node, self.nodes)
        sizes = (numpy_helper.from_array(np.array([-1, size]), f"rows/{size}") for size in sorted(self._sizes))
        graph.initializer.extend(sizes)
        for value in graph.input:
            if value.name in self._shapes:
                shape = self._shapes[value.name]
                turned = shape[::-1] if self.fed[value.name][0] else shape
                value.CopyFrom(floats(value.name, ["rows", *(turned if len(shape) == 2 else (1, *shape))]))
        prune(graph)

    def _product(self, node: onnx.NodeProto) -> None:
        x, *matrix = node.input
        given = {"transB": 0, "transA": 0, "alpha": 1.0, **attributes(node)}
        if len(matrix) != 1 or matrix[0] not in self._shapes or len(self._shapes[matrix[0]]) != 2 or given["transA"]:
            raise OtherForm
        transposed = bool(given["transB"])
        self._read(matrix[0], transposed, given["alpha"])
        rows = self._widened(x, self._shapes[matrix[0]][1 if transposed else 0])
        self.on_wide(helper.make_node("MatMul", [], node.output, node.name), [rows, matrix[0]], _BY_ROW)
        self._products[node.output[0]] = matrix[0]

    def _pair(self, node: onnx.NodeProto, fed: list[str]) -> None:
        others = [name for name in node.input if name not in fed]
        if fed:
            if len(self._shapes[fed[0]]) != 1 or len(others) != 1:
                raise OtherForm
            self._read(fed[0])
            rows = self._widened(others[0], self._shapes[fed[0]][0])
            self.on_wide(node, [name if name in fed else rows for name in node.input], _BY_ROW)
            return
        known = all(name in self._wide or name in self._scalars for name in others)
        if not known or not any(map(self._is_wide, others)):
            self.as_it_stands(node)
        elif not self._scaled(node):
            self.on_wide(node, [self._wide.get(name, name) for name in others], _BY_ROW)

    def _scaled(self, node: onnx.NodeProto) -> bool:
        """Move a factor behind a product that nothing else reads into its matrix; returns whether it was one."""
        scalars = [name for name in node.input if name in self._scalars]
        products = [name for name in node.input if name in self._products and self._readers[name] == 1]
        if node.op_type != "Mul" or len(scalars) != 1 or len(products) != 1:
            return False
        transposed, factor = self.fed[matrix := self._products[products[0]]]
        self.fed[matrix] = transposed, factor * float(numpy_helper.to_array(self._scalars[scalars[0]]))
        self._wide[node.output[0]] = self._wide[products[0]]
        return True

    def _is_wide(self, value: str) -> bool:
        """Whether it has the form [N, S, .] alone."""
        return value in self._wide and value not in self._flat

    def _read(self, name: str, transposed: bool = False, factor: float = 1.0) -> None:
        if name in self.fed:  # by two products, of which one may be scaled
            raise OtherForm
        self.fed[name] = transposed, factor

    def _widened(self, value: str, size: int) -> str:
        """[N S, size] -> [N, S, size]."""
        if value not in self._wide:
            if size not in self._sizes:
                self._sizes.add(size)
                self.nodes.append(helper.make_node("Concat", [TEXTS, f"rows/{size}"], [f"rows/{size}/shape"], axis=0))
            self._wide[value] = f"{value}{_BY_ROW}"
            self._flat.add(value)
            self.nodes.append(helper.make_node("Reshape", [value, f"rows/{size}/shape"], [self._wide[value]]))
        return self._wide[value]


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def keep_texts(graph: onnx.GraphProto) -> None:
    """Rewrite a lowered decoder whose products have groups; any other stays as it is."""
    kinds = {node.op_type for node in graph.node}
    if "MatMulNBits" not in kinds or kinds.intersection(_FLAT_ONLY) or all(TEXTS not in n.output for n in graph.node):
        return
    rewriter = _KeptTexts(graph)
    for node in graph.node:
        rewriter.take(node)
    for output in graph.output:
        rewriter.flat(output.name)
    replace(graph.node, rewriter.nodes)
    prune(graph)


class _KeptTexts(_Forms):
    """Keeps values of tokens [N, S, .] wherever that can be."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        self._graph = graph
        self._same: dict[str, str] = {}  # a value [N, S, .] -> the one that takes its place
        self._attended: set[str] = set()  # what attention gives, [N, S, .]
        self._shapes: set[str] = set()  # of [N, S, .]
        self._tokens = {IDS}  # values [N S, .]
        self._small = {each.name for each in graph.initializer if len(each.dims) < 2}  # [.] or []

    def take(self, node: onnx.NodeProto) -> None:
        first, output = node.input[0] if node.input else "", node.output[0]
        if node.op_type == "Concat" and first == TEXTS:
            self._shapes.add(output)
        if node.op_type == "Reshape" and node.input[1] in self._shapes:
            self._split(node)
        elif self._merges(node):
            self._wide[output] = self._same.get(first, first)
            self._tokens.add(output)
        elif self._of_each(node) and any(name in self._wide for name in node.input):
            self._emit_wide(node)
        else:
            if self._of_each(node) or self._looks_up(node):
                self._tokens.update(node.output)
            elif node.op_type == "GroupQueryAttention":
                self._attended.add(output)
            self.as_it_stands(node)

    def as_it_stands(self, node: onnx.NodeProto) -> None:
        super().as_it_stands(node)
        node.input[:] = [self._same.get(name, name) for name in node.input]

    def _split(self, node: onnx.NodeProto) -> None:
        value, output = node.input[0], node.output[0]
        if value in self._wide:
            self._same[output] = self._wide[value]
            return
        self.as_it_stands(node)
        self._wide[value] = output
        self._flat.add(value)

    def _merges(self, node: onnx.NodeProto) -> bool:
        """Whether it takes the axis of texts away."""
        if node.op_type == "Flatten":
            return node.input[0].endswith(_BY_ROW) and attributes(node).get("axis") == 2
        shape = constant(self._graph, node.input[1]) if node.op_type == "Reshape" else None
        return shape is not None and shape.size == 2 and node.input[0] in self._attended

    def _looks_up(self, node: onnx.NodeProto) -> bool:
        """Whether it gives each token's row of a table, or the last tokens' rows of those of all."""
        if node.op_type == "DequantizeLinear":
            return node.input[0] in self._tokens
        if node.op_type != "Gather" or attributes(node).get("axis", 0):
            return False
        return node.input[1] in self._tokens or (node.input[1] == LAST and node.input[0] in self._tokens)

    def _of_each(self, node: onnx.NodeProto) -> bool:
        """Whether it does the same with each token; constants are learnt by the way."""
        if node.op_type == "MatMulNBits":
            return node.input[0] in self._tokens
        if node.op_type in _OF_LAST_AXIS:
            return attributes(node).get("axis") == -1 and node.input[0] in self._tokens
        if node.op_type not in _EACH:
            return False
        if all(name in self._small for name in node.input):
            self._small.update(node.output)
            return False
        if node.op_type == "ReduceMean":  # of the last axis, which stays
            axes = constant(self._graph, node.input[1]) if len(node.input) == 2 else None
            if axes is None or axes.tolist() != [-1] or attributes(node).get("keepdims", 1) != 1:
                return False
        return all(name in self._tokens or name in self._small for name in node.input)

    def _emit_wide(self, node: onnx.NodeProto) -> None:
        like = next(self._wide[name] for name in node.input if name in self._wide)
        for name in node.input:
            if name in self._tokens and name not in self._wide:
                self._wide[name] = f"{name}{_OF_TEXTS}"
                self._flat.add(name)
                self.nodes.append(helper.make_node("Shape", [like], [f"{name}/shape"]))
                self.nodes.append(helper.make_node("Reshape", [name, f"{name}/shape"], [self._wide[name]]))
        self.on_wide(node, [self._wide.get(name, name) for name in node.input], _OF_TEXTS)
        self._tokens.update(node.output)

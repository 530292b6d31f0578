"""Pass: one session for rows of any tasks of a structure: a task's values have an axis of rows in front.

A lowered decoder (``in_place``) runs N rows of S tokens.  What is fed of a task, one row's or every row's own:

    x A^T, [N S, K]  ->  [N, S, K] A_n^T [N or 1, K, r]        x v, [N S, d]  ->  [N, S, d] v_n [N or 1, 1, d]

Beside a part of the graph for each task (``mix``) there is one session with one packed copy of the backbone's matrices,
and the nodes are as many for four tasks as for one.  A factor behind a product goes into the matrix that is fed.

Letters: N rows, S tokens of each, K inputs, r rank, d width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.graph.contract import Contract, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.in_place import TEXTS, OtherForm
from edgepeft.graph.parameters import StructuredTask
from edgepeft.graph.protos import attributes, copied, replace

BY_ROW = "/by_row"  # how values [N, S, .] end

_PRODUCTS = ("Gemm", "MatMul")
_PAIRS = ("Add", "Div", "Mul", "Sub")
_SINGLES = ("Cast", "Erf", "Gelu", "Identity", "Neg", "Relu", "Sigmoid", "Tanh")


class _Fed(NamedTuple):
    """How a fed value is read."""

    transposed: bool = False
    factor: float = 1.0


@Contract(requires=[well_formed], ensures=[well_formed])
def by_row(structure: onnx.ModelProto, feeds: Mapping[str, NDArray[np.float32]]) -> StructuredTask | None:
    """The structure for rows of several tasks, and what this task feeds for each of its rows, [1, ...]; None where a
    value is read in another way than as a matrix of a product or as a vector.
    """
    model = copied(structure)
    rewriter = _Rewriter(model.graph, {name: values.shape for name, values in feeds.items()})
    try:
        for node in structure.graph.node:
            rewriter.take(node)
    except OtherForm:
        return None
    if rewriter.fed.keys() != feeds.keys():
        return None
    rewriter.write(model.graph)
    return StructuredTask(model, {name: _row(values, rewriter.fed[name]) for name, values in feeds.items()})


def _row(values: NDArray[np.float32], fed: _Fed) -> NDArray[np.float32]:
    """[r, K] -> [1, K, r]; [d] -> [1, 1, d]."""
    if values.ndim == 1:
        return values[None, None]
    turned = values.T if fed.transposed else values
    return np.ascontiguousarray(turned[None] * np.float32(fed.factor))


class _Rewriter:
    """Goes through a sorted graph once; values of a task are [N, S, .] until something else reads them."""

    def __init__(self, graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.fed: dict[str, _Fed] = {}
        self._shapes = shapes
        self._nodes: list[onnx.NodeProto] = []
        self._wide: dict[str, str] = {}  # a value -> its form [N, S, .]
        self._flat: set[str] = set()  # those of them that have been given as [N S, .] again
        self._products: dict[str, str] = {}  # what a product gives -> the matrix that was fed
        self._sizes: set[int] = set()
        self._scalars = {t.name: t for t in graph.initializer if not t.dims and t.data_type == TensorProto.FLOAT}
        self._outputs = [output.name for output in graph.output]
        self._readers = Counter(name for node in graph.node for name in node.input)
        self._readers.update(self._outputs)

    def take(self, node: onnx.NodeProto) -> None:
        fed = [name for name in node.input if name in self._shapes]
        if node.op_type in _PRODUCTS and len(fed) == 1:
            self._product(node)
        elif node.op_type in _PAIRS and len(fed) < 2:
            self._pair(node, fed)
        elif fed:
            raise OtherForm
        elif node.op_type in _SINGLES and self._is_wide(node.input[0]):
            self._emit(node, [self._wide[node.input[0]]])
        else:
            self._as_it_stands(node)

    def write(self, graph: onnx.GraphProto) -> None:
        for name in self._outputs:
            self._flattened(name)
        replace(graph.node, self._nodes)
        graph.initializer.extend(
            numpy_helper.from_array(np.array([-1, size], np.int64), f"rows/{size}") for size in sorted(self._sizes)
        )
        for value in graph.input:
            if value.name in self._shapes:
                shape = self._shapes[value.name]
                turned = shape[::-1] if self.fed[value.name].transposed else shape
                extents: list[int | str | None] = ["rows", *(turned if len(shape) == 2 else (1, *shape))]
                value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, extents))
        prune(graph)

    def _product(self, node: onnx.NodeProto) -> None:
        x, *matrix = node.input
        given = {"transB": 0, "transA": 0, "alpha": 1.0, **attributes(node)}
        if len(matrix) != 1 or matrix[0] not in self._shapes or len(self._shapes[matrix[0]]) != 2 or given["transA"]:
            raise OtherForm
        transposed = bool(given["transB"])
        self._read(matrix[0], _Fed(transposed, given["alpha"]))
        rows = self._widened(x, self._shapes[matrix[0]][1 if transposed else 0])
        self._emit(helper.make_node("MatMul", [], node.output, node.name), [rows, matrix[0]])
        self._products[node.output[0]] = matrix[0]

    def _pair(self, node: onnx.NodeProto, fed: list[str]) -> None:
        others = [name for name in node.input if name not in fed]
        if fed:
            if len(self._shapes[fed[0]]) != 1 or len(others) != 1:
                raise OtherForm
            self._read(fed[0], _Fed())
            rows = self._widened(others[0], self._shapes[fed[0]][0])
            self._emit(node, [name if name in fed else rows for name in node.input])
            return
        known = all(name in self._wide or name in self._scalars for name in others)
        if not known or not any(map(self._is_wide, others)):
            self._as_it_stands(node)
        elif not self._scaled(node):
            self._emit(node, [self._wide.get(name, name) for name in others])

    def _scaled(self, node: onnx.NodeProto) -> bool:
        """Whether it is a factor behind a product that nothing else reads: the matrix takes it."""
        scalars = [name for name in node.input if name in self._scalars]
        products = [name for name in node.input if name in self._products and self._readers[name] == 1]
        if node.op_type != "Mul" or len(scalars) != 1 or len(products) != 1:
            return False
        fed = self.fed[matrix := self._products[products[0]]]
        self.fed[matrix] = fed._replace(factor=fed.factor * float(numpy_helper.to_array(self._scalars[scalars[0]])))
        self._wide[node.output[0]] = self._wide[products[0]]
        return True

    def _is_wide(self, value: str) -> bool:
        """Whether it has the form [N, S, .] alone."""
        return value in self._wide and value not in self._flat

    def _read(self, name: str, how: _Fed) -> None:
        if name in self.fed:  # by two products, of which one may be scaled
            raise OtherForm
        self.fed[name] = how

    def _emit(self, node: onnx.NodeProto, inputs: list[str]) -> None:
        """The node on forms [N, S, .], whose result has that form."""
        new = copied(node)
        wide = f"{node.output[0]}{BY_ROW}"
        new.input[:], new.output[:] = inputs, [wide]
        self._nodes.append(new)
        self._wide[node.output[0]] = wide

    def _as_it_stands(self, node: onnx.NodeProto) -> None:
        for name in node.input:
            self._flattened(name)
        self._nodes.append(node)

    def _widened(self, value: str, size: int) -> str:
        """[N S, size] -> [N, S, size]."""
        if value not in self._wide:
            if size not in self._sizes:
                self._sizes.add(size)
                self._nodes.append(helper.make_node("Concat", [TEXTS, f"rows/{size}"], [f"rows/{size}/shape"], axis=0))
            self._wide[value] = f"{value}{BY_ROW}"
            self._flat.add(value)
            self._nodes.append(helper.make_node("Reshape", [value, f"rows/{size}/shape"], [self._wide[value]]))
        return self._wide[value]

    def _flattened(self, value: str) -> None:
        """[N, S, .] -> [N S, .], under the value's own name."""
        if self._is_wide(value):
            self._flat.add(value)
            self._nodes.append(helper.make_node("Flatten", [self._wide[value]], [value], axis=2))

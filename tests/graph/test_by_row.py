"""A task's values with an axis of rows: each row gets its own task's, against NumPy, and what is read otherwise stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from graphs import session
from onnx import TensorProto, helper, numpy_helper

from edgepeft.graph.by_row import by_row
from edgepeft.graph.names import PLACE, TEXTS

N, S, D, R, OUT = 3, 2, 4, 2, 3
SHAPES = {"A": (R, D), "B": (OUT, R), "v": (OUT,), "b": (R,)}


def node(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


# out = (y + s B relu(A x + b)) v, and the same product read by the backbone besides.
NODES = [
    node("Shape", [PLACE], TEXTS),
    node("Gemm", ["x", "A"], "u", transB=1),
    node("Add", ["u", "b"], "moved"),
    node("Relu", ["moved"], "kept"),
    node("Gemm", ["kept", "B"], "w", transB=1),
    node("Mul", ["w", "s"], "scaled"),
    node("Add", ["y", "scaled"], "sum"),
    node("Mul", ["sum", "v"], "out"),
    node("ReduceSum", ["sum"], "total", keepdims=0),
]


def structure(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    tokens = {"x": D, "y": OUT}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["t", d]) for n, d in tokens.items()]
    inputs.append(helper.make_tensor_value_info(PLACE, TensorProto.INT32, ["n"]))
    inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in SHAPES.items()]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("out", "total")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.float32(3), "s")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def drawn(seed: int) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {name: source.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("tasks", [[0, 1, 2], [1, 1, 1], [2, 0, 2]])
def test_each_row_is_answered_by_its_own_task(tasks: list[int], tmp_path):
    found = [by_row(structure(NODES), drawn(task)) for task in range(3)]
    models = {each.structure.SerializeToString(deterministic=True) for each in found}
    assert len(models) == 1  # what is a task's own is fed
    source = np.random.default_rng(9)
    x, y = (source.normal(size=(N * S, d)).astype(np.float32) for d in (D, OUT))
    fed = {name: np.concatenate([found[task].feeds[name] for task in tasks]) for name in SHAPES}
    if len(set(tasks)) == 1:
        fed = {name: values[:1] for name, values in fed.items()}  # one stands for all
    out, total = session(found[0].structure, tmp_path).run(
        ["out", "total"], {"x": x, "y": y, PLACE: np.zeros(N, np.int32), **fed}
    )
    sums = []
    for row, task in enumerate(tasks):
        own, part = drawn(task), slice(row * S, (row + 1) * S)
        update = 3 * np.maximum(x[part] @ own["A"].T + own["b"], 0) @ own["B"].T
        sums.append(y[part] + update)
        np.testing.assert_allclose(out[part], sums[-1] * own["v"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, np.sum(sums), rtol=1e-5, atol=1e-5)


def test_a_factor_goes_into_the_matrix_before_it_where_nothing_else_reads_the_product(tmp_path):
    found = by_row(structure(NODES), drawn(0))
    assert [n.op_type for n in found.structure.graph.node].count("Mul") == 1
    np.testing.assert_allclose(found.feeds["B"][0], 3 * drawn(0)["B"].T, rtol=1e-6)
    read_twice = [*NODES, node("ReduceMax", ["w"], "largest", keepdims=0), node("Add", ["largest", "sum"], "more")]
    changed = [node("Mul", ["more", "v"], "out") if n.output[0] == "out" else n for n in read_twice]
    kept = by_row(structure([*[n for n in changed if n.output[0] != "out"], changed[7]]), drawn(0))
    np.testing.assert_allclose(kept.feeds["B"][0], drawn(0)["B"].T, rtol=1e-6)


@pytest.mark.parametrize(
    "instead",
    [
        node("Gather", ["v", "index"], "out"),
        node("Gemm", ["x", "A", "b"], "u", transB=1),
        node("Gemm", ["A", "x"], "u", transB=1),
        node("Gemm", ["x", "B"], "w", transB=0),
    ],
    ids=["lookup", "bias", "first", "again"],
)
def test_what_reads_a_value_in_another_way_is_left_alone(instead: onnx.NodeProto):
    nodes = [instead if n.output == instead.output else n for n in NODES]
    if instead.output[0] == "w":
        nodes.insert(0, node("Gemm", ["x", "B"], "again", transB=1))
        nodes[-1].input[0] = "again"
    model = structure(nodes)
    if "index" in instead.input:
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "index"))
    assert by_row(model, drawn(0)) is None

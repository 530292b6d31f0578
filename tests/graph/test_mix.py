"""One graph for several tasks: each slot's values on its own rows, and what is refused because rows cannot be told apart."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tolerance import error_of_sums

from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS, mix, slotted

SITES = {"site": "y", "pooled.first": "pooled", "first_token": "row.start", "token.row": "token.row"}
W = np.array([[1.0, 2.0], [0.5, -1.0]], np.float32)


def structure(nodes, feeds):
    """y [tokens, 2] = 2 x; what ``nodes`` make of it goes through the backbone's W; logits of the rows' first tokens."""

    def value(name, dtype, *shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["y"], name="backbone/y"),
            *nodes,
            helper.make_node("MatMul", ["z", "w"], ["hidden"], name="backbone/hidden"),
            helper.make_node("Gather", ["hidden", "row.start"], ["pooled"], name="backbone/pooled"),
            helper.make_node("MatMul", ["pooled", "delta/head"], ["logits"], name="delta/logits"),
        ],
        "g",
        [
            value("x", TensorProto.FLOAT, "tokens", 2),
            value("row.start", TensorProto.INT64, "rows"),
            value("token.row", TensorProto.INT64, "tokens"),
            *(value(name, TensorProto.FLOAT, *shape) for name, shape in feeds.items()),
            value("delta/head", TensorProto.FLOAT, 2, "outputs"),
        ],
        [value("logits", TensorProto.FLOAT, "rows", "outputs")],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(op, inputs, output, name="delta", **attributes):
    return helper.make_node(op, inputs, [output], name=f"{name}/{output}", **attributes)


SCALED = [node("Mul", ["y", "delta/s"], "site:adapted"), node("Identity", ["site:adapted"], "z", "backbone")]


def mixed(nodes, feeds, n=2):
    return mix(structure(nodes, feeds), [*feeds, "delta/head"], SITES, n)


def test_each_slot_answers_with_its_own_values_on_its_own_rows():
    model = mixed(SCALED, {"delta/s": (2,)}, n=3)
    source = np.random.default_rng(0)
    x = source.standard_normal((7, 2), np.float32)  # rows of 2, 1 | 3 | 1 tokens
    scales = source.standard_normal((3, 2), np.float32)
    heads = [source.standard_normal((2, outputs), np.float32) for outputs in (2, 5, 1)]
    feeds = {"x": x, "row.start": np.array([0, 2, 3, 6]), "token.row": np.array([0, 0, 1, 2, 2, 2, 3])}
    feeds |= {ROW_COUNTS: np.array([2, 1, 1]), TOKEN_COUNTS: np.array([3, 3, 1])}
    for i in range(3):
        feeds |= {slotted("delta/s", i): scales[i], slotted("delta/head", i): heads[i]}
    found = ort.InferenceSession(model.SerializeToString()).run([slotted("logits", i) for i in range(3)], feeds)
    for i, first in enumerate(([0, 2], [3], [6])):
        sizes = np.abs(2 * x[first] * scales[i]) @ np.abs(W) @ np.abs(heads[i])
        error = 2 * error_of_sums(6, sizes)  # both are float32: two products, two sums of two
        np.testing.assert_allclose(found[i], (2 * x[first] * scales[i]) @ W @ heads[i], rtol=0, atol=error)


def test_the_backbones_products_stand_once():
    ops = [n.op_type for n in mixed(SCALED, {"delta/s": (2,)}, n=3).graph.node]
    assert ops.count("MatMul") == 1 + 3  # W once, the head for each slot
    assert ops.count("Mul") == 3


ROWS = [
    node("Gather", ["delta/s", "token.row"], "delta/of_row"),
    node("Mul", ["y", "delta/of_row"], "site:adapted"),
    node("Identity", ["site:adapted"], "z", "backbone"),
]
SOFTMAX = [node("Softmax", ["delta/s"], "soft", "backbone"), node("Mul", ["y", "soft"], "z", "backbone")]
TRANSPOSED = [
    node("Mul", ["y", "delta/s"], "delta/scaled"),
    node("Transpose", ["delta/scaled"], "delta/turned", perm=[1, 0]),
    node("Gather", ["delta/turned", "row.start"], "delta/picked"),
    node("Identity", ["delta/picked"], "z", "backbone"),
]
WHOLE = [
    node("ReduceMean", ["x"], "mean", "backbone", keepdims=1),
    node("Mul", ["mean", "delta/s"], "delta/m"),
    node("Add", ["y", "delta/m"], "site:adapted"),
    node("Identity", ["site:adapted"], "z", "backbone"),
]


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (ROWS, "reads which row a token is of"),
        (SOFTMAX, "a node of the backbone that is not known to work by row"),
        (TRANSPOSED, "joins what may have another first axis"),
        (WHOLE, "reads a value of unknown first axis"),
    ],
    ids=["rows", "softmax", "transposed", "whole"],
)
def test_what_cannot_be_told_apart_by_rows_is_refused(nodes, why):
    assert mixed(nodes, {"delta/s": (2,)}) is None, why


def test_the_argument_stays_as_it_was():
    model = structure(SCALED, {"delta/s": (2,)})
    before = model.SerializeToString(deterministic=True)
    mix(model, ["delta/s", "delta/head"], SITES, 2)
    assert onnx.ModelProto.FromString(before) == model

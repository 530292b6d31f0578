"""A spliced task's own values as inputs: what is fed, what stays, and which tasks are left alone."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from tolerance import error_of_sums

from edgepeft.graph.parameters import computed_values, make_inputs


def spliced(nodes, own, backbone=None, output="logits"):
    """A graph as ``splice`` leaves it: input x [rows, 2], the task's values under ``delta/``."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["rows", None])],
        [numpy_helper.from_array(value, name) for name, value in ((backbone or {}) | own).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], name=f"delta/{output}", **attributes)


def run(model, feeds):
    return ort.InferenceSession(model.SerializeToString()).run(["logits"], feeds)[0]


def head(seed, outputs=3):
    """logits = x W^T + b"""
    rng = np.random.default_rng(seed)
    own = {
        "delta/w": rng.standard_normal((outputs, 2), np.float32),
        "delta/b": rng.standard_normal(outputs, np.float32),
    }
    nodes = [
        node("Gemm", ["x", "delta/w"], "delta/product", transB=1),
        node("Add", ["delta/product", "delta/b"], "logits"),
    ]
    return spliced(nodes, own), own


X = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)


def require_head(found, own):
    """Logits of X, in float32 as NumPy's are."""
    w, b = own["delta/w"].T, own["delta/b"]
    error = 2 * error_of_sums(4, np.abs(X) @ np.abs(w) + np.abs(b))
    np.testing.assert_allclose(found, X @ w + b, rtol=0, atol=error)


def test_two_tasks_of_one_structure_give_equal_bytes_and_their_own_answers():
    (one, values), (two, others) = head(0), head(1)
    first, second = make_inputs(one, {}), make_inputs(two, {})
    assert first.structure.SerializeToString(deterministic=True) == second.structure.SerializeToString(
        deterministic=True
    )
    for parted, own in ((first, values), (second, others)):
        require_head(run(first.structure, {"x": X, **parted.feeds}), own)


def test_tasks_with_other_numbers_of_labels_share_a_structure():
    (two, _), (five, own) = head(0, outputs=2), head(1, outputs=5)
    first, second = make_inputs(two, {}), make_inputs(five, {})
    assert first.structure.SerializeToString(deterministic=True) == second.structure.SerializeToString(
        deterministic=True
    )
    require_head(run(first.structure, {"x": X, **second.feeds}), own)


def test_scalars_and_integers_belong_to_the_structure():
    own = {
        "delta/shape": np.array([-1, 2]),
        "delta/factor": np.array(2.0, np.float32),
        "delta/b": np.ones(2, np.float32),
    }
    nodes = [
        node("Reshape", ["x", "delta/shape"], "delta/r"),
        node("Mul", ["delta/r", "delta/factor"], "delta/m"),
        node("Add", ["delta/m", "delta/b"], "logits"),
    ]
    parted = make_inputs(spliced(nodes, own), {})
    assert set(parted.feeds) == {"delta/b"}
    other = make_inputs(spliced(nodes, {**own, "delta/factor": np.array(3.0, np.float32)}), {})
    assert parted.structure != other.structure


def test_what_follows_from_the_tasks_own_values_is_computed_once_and_fed():
    own = {"delta/s": np.array([[1.0], [2.0]], np.float32), "delta/t": np.array([[3.0, 4.0]], np.float32)}
    nodes = [node("MatMul", ["delta/s", "delta/t"], "delta/w"), node("MatMul", ["x", "delta/w"], "logits")]
    model = spliced(nodes, own)
    found = ort.InferenceSession(computed_values(model).SerializeToString()).run(["delta/w"], {})[0]
    np.testing.assert_array_equal(found, [[3, 4], [6, 8]])
    parted = make_inputs(model, {"delta/w": found})
    assert set(parted.feeds) == {"delta/w"}
    assert [n.op_type for n in parted.structure.graph.node] == ["MatMul"]
    np.testing.assert_allclose(run(parted.structure, {"x": X, **parted.feeds}), X @ [[3, 4], [6, 8]])


def test_a_replaced_vector_is_fed_and_a_replaced_matrix_is_not():
    for value, shared in ((np.ones(2, np.float32), True), (np.ones((2, 2), np.float32), False)):
        nodes = [
            node("Identity", ["delta/override/v"], "override:v"),
            helper.make_node("MatMul" if value.ndim > 1 else "Add", ["x", "override:v"], ["logits"], name="backbone"),
        ]
        model = spliced(nodes, {"delta/override/v": value})
        parted = make_inputs(model, {"override:v": value})
        assert (parted is not None) == shared
        if parted is not None:
            assert set(parted.feeds) == {"override:v"}


def test_a_replacement_that_is_computed_from_the_backbones_own_tensor_is_left_to_the_session():
    nodes = [
        node("Add", ["w", "delta/change"], "override:w"),
        helper.make_node("Add", ["x", "override:w"], ["logits"], name="backbone"),
    ]
    model = spliced(nodes, {"delta/change": np.ones(2, np.float32)}, {"w": np.ones(2, np.float32)})
    assert make_inputs(model, {}) is None


def test_the_backbones_own_tensors_are_never_fed():
    model = spliced([helper.make_node("Add", ["x", "w"], ["logits"], name="n")], {}, {"w": np.ones(2, np.float32)})
    assert computed_values(model) is None
    assert make_inputs(model, {}).feeds == {}


def test_the_argument_stays_as_it_was():
    model, _ = head(0)
    before = model.SerializeToString(deterministic=True)
    make_inputs(model, {})
    assert onnx.ModelProto.FromString(before) == model

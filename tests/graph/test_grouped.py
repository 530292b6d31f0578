"""Matrices in 4 bits: what is stored, what it stands for, and products with it, against NumPy's transcription."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from four_bits import four_bits
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import load_file, save_file
from tolerance import error_of_sums

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import INT4_WEIGHTS_FILE, WEIGHTS_FILE, external_tensor
from edgepeft.common.errors import BundleError
from edgepeft.graph.external_data import external_values, load_external
from edgepeft.graph.grouped import lower_groups
from edgepeft.graph.protos import external_tensors
from edgepeft.graph.quantise import quantise, quantised_tensors
from edgepeft.runtime.session import open_session


@pytest.fixture(scope="module")
def weights():
    found = np.random.default_rng(0).normal(size=(48, 96)).astype(np.float32)
    found[3], found[5, 32:64], found[6, :32] = 0, 1e-20, 1e-45  # zeros, tiny values, and such as have no eighth
    return found


@pytest.fixture(scope="module")
def made(weights, tmp_path_factory):
    """Two products of x, [T, 96] and [T, 40], whose rows are no whole groups, as a bundle's graph in 4 bits has them."""
    folder = tmp_path_factory.mktemp("four")
    save_file({"w": weights, "short": weights[:, :40].copy()}, folder / WEIGHTS_FILE)
    whole = Checkpoint.open(folder / WEIGHTS_FILE)
    nodes = [helper.make_node("Gemm", [x, w], [y], y, transB=1) for x, w, y in (("x", "w", "y"), ("z", "short", "v"))]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", n]) for name, n in SIZES.items()}
    tensors = [external_tensor(whole.tensors[name]) for name in ("w", "short")]
    graph = helper.make_graph(nodes, "two", [values["x"], values["z"]], [values["y"], values["v"]], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    save_file(quantised_tensors(model.graph, whole, four_bits=True), folder / INT4_WEIGHTS_FILE)
    quantise(model, Checkpoint.open(folder / INT4_WEIGHTS_FILE))
    return model, folder


SIZES = {"x": 96, "z": 40, "y": 48, "v": 48}


def test_the_file_holds_two_numbers_a_byte_and_a_scale_a_group(made, weights):
    stored = load_file(made[1] / INT4_WEIGHTS_FILE)
    assert {name: (str(each.dtype), each.shape) for name, each in stored.items()} == {
        "w:int4": ("uint8", (48, 48)),
        "w:scale": ("float32", (48, 3)),
        "short:int8:transposed": ("int8", (40, 48)),  # no whole groups: 8 bits
        "short:scale": ("float32", (48,)),
    }
    numbers = np.stack([stored["w:int4"] % 16, stored["w:int4"] // 16], -1).reshape(48, 96).astype(np.float32)
    assert_array_equal((numbers - 8) * np.repeat(stored["w:scale"], 32, 1), four_bits(weights))
    assert set(np.unique(numbers)) == {*range(16)}


def test_a_checkpoint_reads_what_the_4_bits_stand_for(made, weights):
    checkpoint = Checkpoint.open(made[1] / INT4_WEIGHTS_FILE)
    assert_array_equal(checkpoint.values("w"), four_bits(weights))
    assert checkpoint.as_published.tensors["w"].shape == (48, 96) and checkpoint.is_quantised


def test_onnx_itself_reads_the_stored_graph_as_these_values(made, weights):
    """The standard's reference, which has nothing of ours or of ONNX Runtime's."""
    model, folder = onnx.ModelProto(), made[1]
    model.CopyFrom(made[0])
    load_external(
        model, external_values(model, [*external_tensors(model.graph)], Checkpoint.open(folder / INT4_WEIGHTS_FILE))
    )
    onnx.checker.check_model(model)
    x = np.eye(96, dtype=np.float32)
    (y,) = ReferenceEvaluator(model).run(["y"], {"x": x, "z": x[:, :40]})
    assert_array_equal(y, four_bits(weights).T)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("form", ["as stored", "float32", "8 bits"])
def test_a_product_is_that_with_the_rounded_matrix_whatever_stands_beside_a_row(made, weights, monkeypatch, rows, form):
    if form == "as stored":
        monkeypatch.setattr("edgepeft.runtime.session.lower_groups", lambda model, accuracy_level: None)
    monkeypatch.setattr("edgepeft.runtime.session.lacks_dot_product", lambda: form == "float32")
    session = open_session(*made, 1)
    x = np.random.default_rng(rows).normal(size=(rows, 96)).astype(np.float32)
    x *= np.geomspace(1e-3, 1e3, rows, dtype=np.float32)[:, None]
    (found,) = session.run(["y"], {"x": x, "z": x[:, :40]})
    rounded = four_bits(weights).astype(np.float64)
    bound = np.array([error_of_sums(96, sizes) for sizes in np.abs(x) @ np.abs(rounded.T)])[:, None]
    if form == "8 bits":  # each group of x within half a step of its largest over 127
        alone = [session.run(["y"], {"x": x[i : i + 1], "z": x[i : i + 1, :40]})[0] for i in range(rows)]
        assert (np.abs(found - np.concatenate(alone)) <= 2 * bound).all()  # without VNNI one row is summed otherwise
        half = np.abs(x).reshape(rows, 3, 32).max(2) / 127 * 0.501
        bound = bound + half @ np.abs(rounded).reshape(48, 3, 32).sum(2).T
    assert (np.abs(found - x @ rounded.T) <= bound).all()
    assert np.abs(found - x @ weights.T).max() > 10 * bound.min()  # and no product of the matrix before it was rounded


def test_a_matrix_that_others_read_too_is_unpacked_for_them_alone(made, weights):
    model, folder = onnx.ModelProto(), made[1]
    model.CopyFrom(made[0])
    model.graph.node.add().CopyFrom(helper.make_node("Gemm", ["y", "w"], ["back"], "back"))  # as a gradient does
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("back", TensorProto.FLOAT, ["T", 96]))
    lower_groups(model, accuracy_level=0)
    assert sorted(
        node.op_type for node in model.graph.node if node.op_type in ("MatMulNBits", "Gemm", "DequantizeLinear")
    ) == [
        "DequantizeLinear",
        "Gemm",
        "MatMulNBits",
    ]
    x = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    y, back = open_session(model, folder, 1).run(["y", "back"], {"x": x, "z": x[:, :40]})
    np.testing.assert_allclose(back, y.astype(np.float64) @ four_bits(weights), rtol=0, atol=1e-3)


def test_values_that_are_not_finite_are_refused_by_name(made, weights, tmp_path):
    broken = weights.copy()
    broken[2, 7] = np.inf
    save_file({"w": broken, "short": weights[:, :40].copy()}, tmp_path / WEIGHTS_FILE)
    whole = Checkpoint.open(tmp_path / WEIGHTS_FILE)
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], "one", [], [], [])
    graph.initializer.append(external_tensor(whole.tensors["w"]))
    with pytest.raises(BundleError, match="checkpoint's w has values that are not finite"):
        quantised_tensors(graph, whole, four_bits=True)

"""8-bit projections and embeddings against their equations in NumPy, integers exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file
from tiny import ragged
from tolerance import error_of_sums

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.graph.splice import splice
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.bundle import write_backbone

WORDS = "embeddings.word_embeddings.weight"
LAYER = "encoder.layer.1."
SIZES = {"vocab_size": 1100}  # above what is worth quantising


@pytest.fixture(scope="module")
def backbone(tiny) -> Backbone:
    return open_backbone(str(tiny("bert", **SIZES)))


@pytest.fixture(scope="module")
def folder(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8")
    write_backbone(backbone, folder, "int8")
    return folder


@pytest.fixture(scope="module")
def values(backbone: Backbone, folder: Path) -> dict[str, np.ndarray]:
    """What the graph gives at its values, on rows of many lengths."""
    model = onnx.load(str(folder / "backbone.onnx"), load_external_data=False)
    wanted = [
        *("word_embeddings", "embeddings", "layer.1.layer_output"),
        *(f"layer.1.{name}" for name in ("query", "key", "value", "context", "attention_output")),
        *(f"layer.1.{name}" for name in ("attention_norm", "ffn_up", "ffn_activation", "ffn_output")),
        "layer.0.layer_output",
    ]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    inputs = ragged(6, 17, dict(backbone.config), seed=3)
    found = open_session(model, folder, 1).run(wanted, inputs)
    return dict(zip(wanted, found, strict=True)) | {"ids": inputs["input_ids"][inputs["attention_mask"] == 1]}


def eight_bits(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric quantiser: the largest of each row becomes 127."""
    scale = (np.abs(weights).max(1) / np.float32(127)).astype(np.float32)
    return np.rint(weights / scale[:, None]).astype(np.int64), scale


def of_rows(x: np.ndarray, zero: int) -> tuple[np.ndarray, np.ndarray]:
    """A scale a row, such that neither end is cut off."""
    up, down = x.max(1, keepdims=True) * np.float32(1 / (255 - zero)), x.min(1, keepdims=True) * np.float32(-1 / zero)
    scale = np.maximum(up, down).astype(np.float32)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale


@pytest.mark.parametrize(
    ("module", "source", "target", "zero"),
    [
        ("attention.self.query", "layer.0.layer_output", "layer.1.query", 128),
        ("attention.self.key", "layer.0.layer_output", "layer.1.key", 128),
        ("attention.self.value", "layer.0.layer_output", "layer.1.value", 128),
        ("attention.output.dense", "layer.1.context", "layer.1.attention_output", 128),
        ("intermediate.dense", "layer.1.attention_norm", "layer.1.ffn_up", 128),
        ("output.dense", "layer.1.ffn_activation", "layer.1.ffn_output", 16),
    ],
)
def test_a_projection_is_the_integer_product_of_its_quantised_operands(backbone, values, module, source, target, zero):
    stored = load_file(backbone.weights)
    weights, bias = stored[f"{LAYER}{module}.weight"], stored[f"{LAYER}{module}.bias"]
    w8, scale = eight_bits(weights)
    x8, sx = of_rows(values[source], zero)
    product = (x8 - zero) @ w8.T * (sx * scale)
    error = error_of_sums(8, np.abs(product) + np.abs(bias))  # integers are exact; then scales, a product, a sum
    np.testing.assert_allclose(values[target], product + bias, rtol=0, atol=error)
    # ... and it is no float product: 8 bits leave a trace.
    assert 1e-4 < np.abs(values[target] - (values[source] @ weights.T + bias)).max() < 0.1


def test_a_words_row_is_its_integers_times_its_scale(backbone, values):
    w8, scale = eight_bits(load_file(backbone.weights)[WORDS])
    np.testing.assert_allclose(values["word_embeddings"], w8[values["ids"]] * scale[values["ids"], None], atol=1e-7)


def test_the_weights_file_holds_matrices_transposed_and_everything_else_as_it_was(backbone, folder):
    theirs, ours = load_file(backbone.weights), load_file(folder / "model.int8.safetensors")
    used = set(backbone.architecture.tensors) | set(backbone.architecture.pooler)
    matrices = {name for name in used if name.startswith("encoder.") and theirs[name].ndim == 2}
    assert len(matrices) == 2 * 6
    for name in matrices:
        w8, scale = eight_bits(theirs[name])
        np.testing.assert_array_equal(ours.pop(f"{name}:int8:transposed"), w8.T)
        np.testing.assert_array_equal(ours.pop(f"{name}:scale"), scale)
    np.testing.assert_array_equal(ours.pop(f"{WORDS}:int8"), eight_bits(theirs[WORDS])[0])
    np.testing.assert_array_equal(ours.pop(f"{WORDS}:scale"), eight_bits(theirs[WORDS])[1])
    assert set(ours) == used - matrices - {WORDS}
    assert all(np.array_equal(values, theirs[name]) for name, values in ours.items())


def test_the_file_stands_for_the_weights_that_it_was_made_of(backbone, folder):
    read = Bundle(folder).checkpoint.read
    for name, weights in load_file(backbone.weights).items():
        if Bundle(folder).checkpoint.has(name):
            step = np.abs(weights).max(-1, keepdims=True) / 127
            assert read(name).shape == weights.shape and (np.abs(read(name) - weights) <= 0.501 * step).all()


def test_sites_keep_their_names_and_operators_are_standard(backbone, folder):
    graph = onnx.load(str(folder / "backbone.onnx"), load_external_data=False)
    onnx.checker.check_model(str(folder / "backbone.onnx"))
    made = {name for node in graph.graph.node for name in node.output}
    assert set(Bundle(folder).manifest.backbone.sites.values()) <= made
    assert {node.domain for node in graph.graph.node} == {""}
    assert not any(node.op_type == "Gemm" for node in graph.graph.node)
    assert (folder / "backbone.onnx").stat().st_size < 200_000


def test_query_key_and_value_read_one_quantised_input(folder):
    nodes = onnx.load(str(folder / "backbone.onnx"), load_external_data=False).graph.node
    assert sum(node.op_type == "QuantizeLinear" for node in nodes) == 2 * 4  # and context, the FFN's two
    assert sum(node.op_type == "MatMulInteger" for node in nodes) == 2 * 6


def test_a_delta_reads_a_quantised_tensor_as_float32_numbers(folder):
    """As an input weight:<tensor>, of the matrix and of the table."""
    name, bundle = f"{LAYER}attention.output.dense.weight", Bundle(folder)
    delta = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["pooled.first", f"weight:{name}"], ["product"]),
                helper.make_node("MatMul", [f"weight:{WORDS}", f"weight:{name}"], ["words"]),
                helper.make_node("ReduceSum", ["words"], ["sum"], keepdims=0),
                helper.make_node("Add", ["product", "sum"], ["logits"]),
            ],
            "t",
            [
                helper.make_tensor_value_info("pooled.first", TensorProto.FLOAT, ["batch", 32]),
                helper.make_tensor_value_info(f"weight:{name}", TensorProto.FLOAT, [32, 32]),
                helper.make_tensor_value_info(f"weight:{WORDS}", TensorProto.FLOAT, [1100, 32]),
            ],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 32])],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    model = splice(bundle.backbone_graph, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
    inputs = ragged(3, 9, {"vocab_size": 1100, "pad_token_id": 0})
    found = open_session(model, folder, 1).run(["logits"], inputs)[0]
    pooled = open_session(bundle.backbone_graph, folder, 1).run(["pooled.first"], inputs)[0]
    matrix, words = bundle.checkpoint.values(name), bundle.checkpoint.values(WORDS)
    np.testing.assert_allclose(found, pooled @ matrix + (words @ matrix).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tiny, tmp_path, value):
    name = f"{LAYER}output.dense.weight"
    stored = {key: np.array(tensor) for key, tensor in load_file(tiny("bert", **SIZES) / "model.safetensors").items()}
    stored[name][3, 3] = value
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in ("config.json", "tokenizer.json"):
        (broken / file).write_bytes((tiny("bert", **SIZES) / file).read_bytes())
    save_file(stored, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BundleError, match=name):
        write_backbone(open_backbone(str(broken)), tmp_path, "int8")


def test_a_row_of_zeros_stays_zeros(tiny, tmp_path):
    name = f"{LAYER}output.dense.weight"
    stored = {key: np.array(tensor) for key, tensor in load_file(tiny("bert", **SIZES) / "model.safetensors").items()}
    stored[name][3] = 0
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in ("config.json", "tokenizer.json"):
        (plain / file).write_bytes((tiny("bert", **SIZES) / file).read_bytes())
    save_file(stored, plain / "model.safetensors", metadata={"format": "pt"})
    write_backbone(open_backbone(str(plain)), tmp_path, "int8")
    assert (Bundle(tmp_path).checkpoint.read(name)[3] == 0).all()

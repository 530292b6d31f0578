"""8-bit projections and embeddings against their equations in NumPy, integers exactly."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from tiny import ragged, with_outliers
from tolerance import error_of_sums

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import INT8_WEIGHTS_FILE, WEIGHTS_FILE, external_tensor
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.graph.protos import external_tensors
from edgepeft.graph.quantise import quantise, quantised_tensors
from edgepeft.graph.splice import splice
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.backbone import column_factors, write_backbone

WORDS = "embeddings.word_embeddings.weight"
LAYER = "encoder.layer.1."
SIZES = {"vocab_size": 1100}  # above what is worth quantising


@pytest.fixture(scope="module")
def backbone(tiny, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return open_backbone(str(with_outliers(tiny("bert", **SIZES), tmp_path_factory.mktemp("bert"))))


@pytest.fixture(scope="module")
def even(tiny) -> Backbone:
    return open_backbone(str(tiny("bert", **SIZES)))


@pytest.fixture(scope="module")
def folder(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8")
    write_backbone(backbone, folder, "int8")
    return folder


@pytest.fixture(scope="module", params=["as stored", "lowered", "lowered, small tensors in the graph"])
def values(request, backbone: Backbone, folder: Path) -> dict[str, np.ndarray]:
    """What the graph gives at its values, on rows of many lengths: as the file has it, and as sessions run it, without
    a cache and with one."""
    model = onnx.load(str(folder / "backbone.onnx"), load_external_data=False)
    if request.param.endswith("in the graph"):
        for tensor in external_tensors(model.graph):
            if list(tensor.dims) == [1]:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = TensorProto.DEFAULT
    wanted = [
        *("word_embeddings", "embeddings", "layer.1.layer_output"),
        *(f"layer.1.{name}" for name in ("query", "key", "value", "context", "attention_output")),
        *(f"layer.1.{name}" for name in ("attention_norm", "ffn_up", "ffn_activation", "ffn_output")),
        "layer.0.layer_output",
    ]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    inputs = ragged(6, 17, dict(backbone.config), seed=3)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as stored":
            patch.setattr("edgepeft.runtime.session.lower_integers", lambda model: False)
        found = open_session(model, folder, 1).run(wanted, inputs)
    ids = {"ids": inputs["input_ids"][inputs["attention_mask"] == 1]}
    return dict(zip(wanted, found, strict=True)) | ids | {"lowered": np.array(request.param != "as stored")}


def eight_bits(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric quantiser: the largest of each row becomes 127."""
    scale = (np.abs(weights).max(1) / np.float32(127)).astype(np.float32)
    return np.rint(weights / scale[:, None]).astype(np.int64), scale


def of_rows(x: np.ndarray, past_gelu: bool, lowered: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Bytes, a scale a row such that neither end is cut off, and the byte of 0."""
    if lowered:
        zero = 32 if past_gelu else 128
        floor = np.float32(0.17 * 223 / 32)  # Gelu is nowhere below -0.17
        largest = np.maximum(x.max(1, keepdims=True), floor) if past_gelu else np.abs(x).max(1, keepdims=True)
        step = np.float32(1 / (255 - zero))
        bytes_ = np.rint(x / largest / step) + zero
        assert bytes_.min() >= 0  # nothing is cut
        return np.minimum(bytes_, 255).astype(np.int64), largest * step, zero
    zero = 16 if past_gelu else 128
    up, down = x.max(1, keepdims=True) * np.float32(1 / (255 - zero)), x.min(1, keepdims=True) * np.float32(-1 / zero)
    scale = np.maximum(up, down).astype(np.float32)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, zero


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("attention.self.query", "layer.0.layer_output", "layer.1.query"),
        ("attention.self.key", "layer.0.layer_output", "layer.1.key"),
        ("attention.self.value", "layer.0.layer_output", "layer.1.value"),
        ("attention.output.dense", "layer.1.context", "layer.1.attention_output"),
        ("intermediate.dense", "layer.1.attention_norm", "layer.1.ffn_up"),
        ("output.dense", "layer.1.ffn_activation", "layer.1.ffn_output"),
    ],
)
def test_a_projection_is_the_integer_product_of_its_quantised_operands(
    backbone, folder, values, module, source, target
):
    stored = load_file(backbone.weights)
    weights, bias = stored[f"{LAYER}{module}.weight"], stored[f"{LAYER}{module}.bias"]
    columns = load_file(folder / INT8_WEIGHTS_FILE).get(f"{LAYER}{module}.weight:columns")
    assert (columns is None) == source.endswith("ffn_activation")
    if columns is None:
        w8, scale = eight_bits(weights)
        x8, sx, zero = of_rows(values[source], source.endswith("ffn_activation"), bool(values["lowered"]))
    else:  # a step of 1 for every row
        w8, scale = eight_bits(weights / columns)
        x8, sx, zero = np.rint(values[source] * columns).astype(np.int64), np.float32(1), 0
        assert 60 < np.abs(x8).max() <= 127
    product = (x8 - zero) @ w8.T * (sx * scale)
    error = error_of_sums(8, np.abs(product) + np.abs(bias))  # integers are exact; then scales, a product, a sum
    np.testing.assert_allclose(values[target], product + bias, rtol=0, atol=error)
    # ... and it is no float product: 8 bits leave a trace.
    lost = np.abs(values[target] - (values[source] @ weights.T + bias)).max()
    assert 1e-4 < lost < 0.05 * np.abs(values[target]).max()


@pytest.mark.parametrize("activation", [None, "Gelu", "Relu"])
def test_lowered_rows_of_any_kind_are_their_product_whatever_stands_beside_them(tmp_path, activation):
    """Zeros, large and tiny rows, rows below zero throughout, and a row that is no number."""
    source = np.random.default_rng(0)
    weights = source.normal(size=(16, 24)).astype(np.float32)
    save_file({"w": weights}, tmp_path / WEIGHTS_FILE)
    whole = Checkpoint.open(tmp_path / WEIGHTS_FILE)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], name="y", transB=1)]
    if activation:
        nodes.insert(0, helper.make_node(activation, ["given"], ["x"]))
    of_x = helper.make_tensor_value_info("given" if activation else "x", TensorProto.FLOAT, ["T", 24])
    of_y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 16])
    graph = helper.make_graph(nodes, "product", [of_x], [of_y], [external_tensor(whole.tensors["w"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    save_file(quantised_tensors(model.graph, whole), tmp_path / INT8_WEIGHTS_FILE)
    quantise(model, Checkpoint.open(tmp_path / INT8_WEIGHTS_FILE))
    rows = source.normal(size=(8, 24)).astype(np.float32)
    rows *= np.array([1, 0, 1e4, 1e-6, 1e-30, -1, 1, 1], np.float32)[:, None]
    rows[5] = -np.abs(rows[5])
    rows[6] = np.nan
    session = open_session(model, tmp_path, 1)
    (together,) = session.run(["y"], {of_x.name: rows})
    alone = np.concatenate([session.run(["y"], {of_x.name: rows[i : i + 1]})[0] for i in range(8)])
    np.testing.assert_array_equal(together, alone)
    finite = np.arange(8) != 6
    exact = rows.astype(np.float64)
    if activation == "Gelu":
        exact = exact * 0.5 * (1 + np.vectorize(math.erf)(exact / math.sqrt(2)))
    elif activation == "Relu":
        exact = np.maximum(exact, 0)
    w8, scale = eight_bits(weights)
    largest = np.maximum(np.abs(exact).max(1, keepdims=True), 1.2 if activation == "Gelu" else 0)
    half_a_step = 0.501 * largest / (223 if activation == "Gelu" else 127)
    summed = np.array([error_of_sums(24, sizes) for sizes in np.abs(exact) @ np.abs(weights.T)])[:, None]
    bound = half_a_step * (np.abs(w8) * scale[:, None]).sum(1) + summed
    off = np.abs(together - exact @ (w8 * scale[:, None]).T)
    assert (off <= bound)[finite].all()
    assert (together[1] == 0).all() and (off[finite] > 0).any()


def test_factors_are_those_of_the_paper(backbone, monkeypatch):
    rows = np.random.default_rng(1).normal(size=(40, 32)).astype(np.float32) * np.geomspace(
        0.1, 9, 32, dtype=np.float32
    )
    monkeypatch.setattr(
        "edgepeft.training.exporting.backbone._values", lambda model, backbone, names: dict.fromkeys(names, rows)
    )
    monkeypatch.setattr("edgepeft.training.exporting.backbone._WORST", np.inf)
    found = column_factors(backbone.architecture.graph(backbone.checkpoint), backbone)
    names = [f"{LAYER}attention.self.{part}.weight" for part in ("query", "key", "value")]
    weights = np.abs(np.concatenate([load_file(backbone.weights)[name] for name in names])).max(0)
    largest = np.abs(rows).max(0)
    ranges = largest**0.75 / weights**0.25  # eq. 4
    for name in names:
        highest = (largest * found[name]).max()
        np.testing.assert_allclose(found[name], highest / (largest / ranges).max() / ranges, rtol=1 / 256)
        assert highest == pytest.approx(127 / 1.5, rel=1 / 256)


@pytest.mark.parametrize(("largest", "fixed"), [(9, True), (9e4, False)])
def test_past_attention_all_channels_have_one_factor_where_no_token_drowns_the_others(
    backbone, monkeypatch, largest, fixed
):
    rows = np.random.default_rng(1).uniform(-1, 1, size=(400, 32)).astype(np.float32)
    rows[1, 3] = -largest
    monkeypatch.setattr(
        "edgepeft.training.exporting.backbone._values", lambda model, backbone, names: dict.fromkeys(names, rows)
    )
    monkeypatch.setattr("edgepeft.training.exporting.backbone._WORST", np.inf)
    found = column_factors(backbone.architecture.graph(backbone.checkpoint), backbone)
    name = f"{LAYER}attention.output.dense.weight"
    assert (name in found) == fixed
    if fixed:
        np.testing.assert_allclose(found[name], [127 / (1.5 * largest)], rtol=1 / 256)


@pytest.mark.parametrize(
    ("site", "factor"), [("value", 20), ("key", 1.5), ("attention_output", 20), ("ffn_output", 20)]
)
def test_a_task_that_changes_what_attention_gives_has_a_step_for_each_row_there(
    backbone, folder, tmp_path, site, factor
):
    """Values by a factor that a fixed step has no room for."""
    floats, integers = tmp_path / "floats", Bundle(folder)
    floats.mkdir()
    write_backbone(backbone, floats)
    adapted = f"layer.1.{site}:adapted"
    nodes = [helper.make_node("Mul", [f"layer.1.{site}", "factor"], [adapted])]
    nodes.append(helper.make_node("Identity", ["pooled.mean"], ["logits"]))
    given = [helper.make_tensor_value_info(f"layer.1.{site}", TensorProto.FLOAT, ["T", 32])]
    given.append(helper.make_tensor_value_info("pooled.mean", TensorProto.FLOAT, ["batch", 32]))
    outputs = [helper.make_tensor_value_info(adapted, TensorProto.FLOAT, ["T", 32])]
    outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 32]))
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    delta = helper.make_model(
        helper.make_graph(nodes, "scaled", given, outputs, [constant]), opset_imports=[helper.make_opsetid("", 20)]
    )
    inputs = ragged(6, 17, dict(backbone.config), seed=3)
    found = {}
    for bundle in (Bundle(floats), integers):
        model = splice(bundle.backbone_graph, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
        found[bundle] = open_session(model, bundle.folder, 1).run(["logits"], inputs)[0]
    exact, rounded = found.values()
    assert np.abs(exact - rounded).max() < 0.08 * np.abs(exact).max()
    units = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[1] == "unit_step"]
    assert len(units) == (6 if site in ("attention_output", "ffn_output") else 5)


def test_where_no_channel_stands_out_or_one_token_does_each_row_keeps_a_step_of_its_own(even, backbone, monkeypatch):
    assert column_factors(even.architecture.graph(even.checkpoint), even) == {}
    rows = np.random.default_rng(1).normal(size=(40, 32)).astype(np.float32) * np.geomspace(
        0.1, 9, 32, dtype=np.float32
    )
    rows[3] *= 50
    monkeypatch.setattr(
        "edgepeft.training.exporting.backbone._values", lambda model, backbone, names: dict.fromkeys(names, rows)
    )
    graph = backbone.architecture.graph(backbone.checkpoint)
    assert column_factors(graph, backbone) == {}


def test_layers_that_share_their_weights_have_one_range(tiny):
    """ALBERT's matrices are read behind several norms."""
    shared = open_backbone(str(tiny("albert")))
    graph = shared.architecture.graph(shared.checkpoint)
    norms = [node for node in graph.graph.node if node.op_type == "LayerNormalization"]
    widths = [shared.checkpoint.tensors[node.input[1]].shape[0] for node in norms]
    rows = {
        node.output[0]: np.full((4, width), i + 1, "f4")
        for i, (node, width) in enumerate(zip(norms, widths, strict=True))
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "edgepeft.training.exporting.backbone._values",
            lambda model, backbone, names: {name: rows.get(name, np.full((4, 32), 9, "f4")) for name in names},
        )
        patch.setattr("edgepeft.training.exporting.backbone._WORST", np.inf)
        found = column_factors(graph, shared)
    readers = [(node.input[0], node.input[1]) for node in graph.graph.node if node.op_type == "Gemm"]
    assert found and all(
        np.abs(rows[x] * found[w]).max() < 127 / 1.5 * 1.01 for x, w in readers if x in rows and w in found
    )


def test_a_words_row_is_its_integers_times_its_scale(backbone, values):
    w8, scale = eight_bits(load_file(backbone.weights)[WORDS])
    np.testing.assert_allclose(values["word_embeddings"], w8[values["ids"]] * scale[values["ids"], None], atol=1e-7)


def test_the_weights_file_holds_matrices_transposed_and_everything_else_as_it_was(backbone, folder):
    theirs, ours = load_file(backbone.weights), load_file(folder / "model.int8.safetensors")
    used = set(backbone.architecture.tensors) | set(backbone.architecture.pooler)
    matrices = {name for name in used if name.startswith("encoder.") and theirs[name].ndim == 2}
    assert len(matrices) == 2 * 6
    for name in matrices:
        columns = ours.pop(f"{name}:columns", None)
        assert (columns is None) == (name.endswith("output.dense.weight") and "attention" not in name)
        w8, scale = eight_bits(theirs[name] if columns is None else theirs[name] / columns)
        np.testing.assert_array_equal(ours.pop(f"{name}:int8:transposed"), w8.T)
        np.testing.assert_array_equal(ours.pop(f"{name}:scale"), scale)
    np.testing.assert_array_equal(ours.pop(f"{WORDS}:int8"), eight_bits(theirs[WORDS])[0])
    np.testing.assert_array_equal(ours.pop(f"{WORDS}:scale"), eight_bits(theirs[WORDS])[1])
    assert set(ours) == used - matrices - {WORDS}
    assert all(np.array_equal(values, theirs[name]) for name, values in ours.items())


def test_the_file_stands_for_the_weights_that_it_was_made_of(backbone, folder):
    read, stored = Bundle(folder).checkpoint.read, load_file(folder / INT8_WEIGHTS_FILE)
    for name, weights in load_file(backbone.weights).items():
        if Bundle(folder).checkpoint.has(name):
            columns = stored.get(f"{name}:columns", np.float32(1))
            step = np.abs(weights / columns).max(-1, keepdims=True) / 127 * columns
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


@pytest.mark.parametrize("module", ["attention.output.dense", "attention.self.query"])  # a step a row, and a fixed one
def test_a_delta_reads_a_quantised_tensor_as_float32_numbers(folder, module):
    """As an input weight:<tensor>, of the matrix and of the table."""
    name, bundle = f"{LAYER}{module}.weight", Bundle(folder)
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


def with_values(model: Path, folder: Path, name: str, row: int | tuple[int, int], value: float) -> Backbone:
    """A copy whose tensor has that value in a row, or at a place."""
    stored = {key: np.array(tensor) for key, tensor in load_file(model / "model.safetensors").items()}
    stored[name][row] = value
    folder.mkdir()
    for file in ("config.json", "tokenizer.json"):
        (folder / file).write_bytes((model / file).read_bytes())
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return open_backbone(str(folder))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tiny, tmp_path, value):
    name = f"{LAYER}output.dense.weight"
    broken = with_values(tiny("bert", **SIZES), tmp_path / "broken", name, (3, 3), value)
    with pytest.raises(BundleError, match=name):
        write_backbone(broken, tmp_path, "int8")


def test_a_row_of_zeros_stays_zeros(tiny, tmp_path):
    name = f"{LAYER}output.dense.weight"
    write_backbone(with_values(tiny("bert", **SIZES), tmp_path / "plain", name, 3, 0), tmp_path, "int8")
    assert (Bundle(tmp_path).checkpoint.read(name)[3] == 0).all()

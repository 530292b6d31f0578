"""Splicing on graphs written as ONNX text; expected values are NumPy's."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.common.errors import BundleError
from edgepeft.graph.splice import splice

BACKBONE = """
<ir_version: 10, opset_import: ["" : 20]>
backbone (float[n, 2] x) => (float[n, 2] out)
<float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0.5, -0.5}>
{
  embeddings = Identity(x)
  dense = Gemm(embeddings, w, b)
  layer0 = Add(dense, embeddings)
  out = Mul(layer0, dense)
}
"""
BINDINGS = {
    "embeddings": "embeddings",
    "layer.0.ffn_output": "dense",
    "layer.0.ffn_output.input": "embeddings",
    "layer.0.ffn_output.residual": "embeddings",
    "layer.0.layer_output": "layer0",
    "layer.1.query.input": "layer0",
    "pooled.mean": "out",
}
W, B = np.array([[1, 2], [3, 4]], np.float32), np.array([0.5, -0.5], np.float32)
X = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]], np.float32)


def delta(text: str, inputs: str, outputs: str) -> onnx.ModelProto:
    """A delta graph from a body; names with dots and colons are not ONNX text, so they are put in afterwards."""
    spelled = {
        "FFN_IN": "layer.0.ffn_output.input",
        "FFN_RES": "layer.0.ffn_output.residual",
        "FFN_A": "layer.0.ffn_output:adapted",
        "FFN": "layer.0.ffn_output",
        "EMB_A": "embeddings:adapted",
        "POOL": "pooled.mean",
        "QIN": "layer.1.query.input",
        "LAYER_A": "layer.0.layer_output:adapted",
        "LAYER": "layer.0.layer_output",
        "OW": "override:w",
        "WW": "weight:w",
        "NOSITE_A": "layer.9.query:adapted",
        "NOTENSOR": "override:nope",
    }
    header = f'<ir_version: 10, opset_import: ["" : 20]>\ndelta ({inputs}) => ({outputs})\n'
    model = onnx.parser.parse_model(header + text)
    for part in (model.graph.input, model.graph.output, model.graph.initializer):
        for item in part:
            item.name = spelled.get(item.name, item.name)
    for node in model.graph.node:
        node.input[:] = [spelled.get(name, name) for name in node.input]
        node.output[:] = [spelled.get(name, name) for name in node.output]
    return model


def run(part: onnx.ModelProto) -> np.ndarray:
    model = splice(onnx.parser.parse_model(BACKBONE), part, BINDINGS, Checkpoint(Path("none"), {}))
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString()).run(["logits"], {"x": X})[0]


def test_every_reader_of_a_site_reads_the_adapted_value_and_the_delta_the_raw_one():
    part = delta(
        "<float[1] three = {3}> { FFN_A = Mul(FFN, three) logits = Identity(POOL) }",
        "float[n,2] FFN, float[n,2] POOL",
        "float[n,2] FFN_A, float[n,2] logits",
    )
    adapted = 3 * (X @ W + B)
    np.testing.assert_allclose(run(part), (adapted + X) * adapted, rtol=1e-6)


def test_an_input_site_reads_what_the_same_delta_made_of_it():
    part = delta(
        "<float[1] two = {2}> { LAYER_A = Mul(LAYER, two) logits = Identity(QIN) }",
        "float[n,2] LAYER, float[n,2] QIN",
        "float[n,2] LAYER_A, float[n,2] logits",
    )
    np.testing.assert_allclose(run(part), 2 * (X @ W + B + X), rtol=1e-6)


def test_an_override_replaces_a_tensor_for_the_backbone_and_for_the_delta():
    part = delta(
        "<float[2,2] mine = {0, 1, 1, 0}> { OW = Identity(mine) s = ReduceSum(WW) p = Add(POOL, s) logits = Identity(p) }",
        "float[n,2] POOL, float[2,2] WW",
        "float[2,2] OW, float[n,2] logits",
    )
    swapped = np.array([[0, 1], [1, 0]], np.float32)
    dense = X @ swapped + B
    np.testing.assert_allclose(run(part), (dense + X) * dense + 2.0, rtol=1e-6)


def test_a_borrowed_weight_is_the_backbones_own_without_an_override():
    part = delta(
        "{ s = ReduceSum(WW) p = Add(POOL, s) logits = Identity(p) }",
        "float[n,2] POOL, float[2,2] WW",
        "float[n,2] logits",
    )
    dense = X @ W + B
    np.testing.assert_allclose(run(part), (dense + X) * dense + 10.0, rtol=1e-6)


def test_names_inside_a_delta_cannot_clash_with_the_backbones():
    # 'dense' and 'b' are the backbone's names too.
    part = delta(
        "<float[1] b = {7}> { dense = Add(FFN, b) FFN_A = Identity(dense) logits = Identity(POOL) }",
        "float[n,2] FFN, float[n,2] POOL",
        "float[n,2] FFN_A, float[n,2] logits",
    )
    adapted = X @ W + B + 7
    np.testing.assert_allclose(run(part), (adapted + X) * adapted, rtol=1e-6)


def test_nothing_that_the_logits_do_not_need_is_left():
    part = delta("{ logits = Identity(EMBOUT) }".replace("EMBOUT", "FFN_IN"), "float[n,2] FFN_IN", "float[n,2] logits")
    model = splice(onnx.parser.parse_model(BACKBONE), part, BINDINGS, Checkpoint(Path("none"), {}))
    assert [node.op_type for node in model.graph.node] == ["Identity", "Identity"]
    assert not model.graph.initializer
    assert [output.name for output in model.graph.output] == ["logits"]


def test_the_arguments_are_left_as_they_were():
    backbone = onnx.parser.parse_model(BACKBONE)
    before = backbone.SerializeToString(deterministic=True)
    part = delta("{ logits = Identity(POOL) }", "float[n,2] POOL", "float[n,2] logits")
    part_before = part.SerializeToString(deterministic=True)
    splice(backbone, part, BINDINGS, Checkpoint(Path("none"), {}))
    assert backbone.SerializeToString(deterministic=True) == before
    assert part.SerializeToString(deterministic=True) == part_before


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "message"),
    [
        (
            "{ NOSITE_A = Identity(POOL) logits = Identity(POOL) }",
            "float[n,2] POOL",
            "float[n,2] NOSITE_A, float[n,2] logits",
            "layer.9.query",
        ),
        (
            "<float[1] v = {1}> { NOTENSOR = Identity(v) logits = Identity(POOL) }",
            "float[n,2] POOL",
            "float[1] NOTENSOR, float[n,2] logits",
            "nope",
        ),
        ("{ FFN_A = Identity(FFN) }", "float[n,2] FFN", "float[n,2] FFN_A", "no output called logits"),
        (
            "{ FFN_A = Identity(POOL) logits = Identity(POOL) }",
            "float[n,2] POOL",
            "float[n,2] FFN_A, float[n,2] logits",
            "read its own output",
        ),
        (
            "{ other = Identity(POOL) logits = Identity(POOL) }",
            "float[n,2] POOL",
            "float[n,2] other, float[n,2] logits",
            "no site, override or logits",
        ),
    ],
)
def test_a_delta_that_cannot_be_spliced_is_refused_by_name(body, inputs, outputs, message):
    with pytest.raises(BundleError, match=message):
        run(delta(body, inputs, outputs))


def test_two_insertions_on_one_value_are_refused():
    part = delta(
        "{ FFN_A = Identity(FFN) LAYER_A = Identity(FFN) logits = Identity(POOL) }",
        "float[n,2] FFN, float[n,2] POOL",
        "float[n,2] FFN_A, float[n,2] LAYER_A, float[n,2] logits",
    )
    bindings = {**BINDINGS, "layer.0.layer_output": "dense"}
    with pytest.raises(BundleError, match="would replace one value, dense"):
        splice(onnx.parser.parse_model(BACKBONE), part, bindings, Checkpoint(Path("none"), {}))


@pytest.mark.parametrize("site", ["layer.0.ffn_output", "pooled.mean"])
def test_a_binding_to_a_value_that_nobody_produces_is_refused_not_ignored(site):
    part = delta(
        "{ FFN_A = Neg(FFN) logits = Identity(POOL) }",
        "float[n,2] FFN, float[n,2] POOL",
        "float[n,2] FFN_A, float[n,2] logits",
    )
    with pytest.raises(BundleError, match=f"site '{site}' is said to be the value 'elsewhere'"):
        splice(onnx.parser.parse_model(BACKBONE), part, {**BINDINGS, site: "elsewhere"}, Checkpoint(Path("none"), {}))

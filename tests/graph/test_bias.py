"""A Gemm's bias as an Add: the same values, for the forms that can be rewritten, and the others left alone."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from edgepeft.graph.splice import split_biases

X = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]], np.float32)


def model(body: str) -> onnx.ModelProto:
    header = '<ir_version: 10, opset_import: ["" : 20]>\nm (float[n, 2] x) => (float[n, 2] y)\n'
    constants = "<float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0.5, -0.5}, float[1] one = {2}, float[1, 2] row = {1, 5}>"
    return onnx.parser.parse_model(f"{header}{constants} {body}")


def operators(found: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in found.graph.node]


@pytest.mark.parametrize(
    "body",
    [
        "{ y = Gemm <transB = 1> (x, w, b) }",
        "{ y = Gemm <alpha = 0.25> (x, w, b) }",
        "{ h = Gemm (x, w, b) r = Relu(h) y = Gemm <beta = 1.0> (r, w, one) }",
    ],
)
def test_the_values_stay_and_no_gemm_has_a_bias(body):
    before, after = model(body), model(body)
    split_biases(after.graph)
    onnx.checker.check_model(after, full_check=True)
    assert operators(after).count("Add") == operators(before).count("Gemm")
    assert all(len(node.input) == 2 for node in after.graph.node if node.op_type == "Gemm")
    expected = ReferenceEvaluator(before).run(None, {"x": X})[0]
    np.testing.assert_allclose(
        ort.InferenceSession(after.SerializeToString()).run(None, {"x": X})[0], expected, rtol=1e-6
    )


@pytest.mark.parametrize(
    "body",
    [
        "{ y = Gemm <beta = 0.5> (x, w, b) }",  # an Add would give the whole bias
        "{ y = Gemm (x, w, row) }",
        "{ c = Relu(b) y = Gemm (x, w, c) }",  # computed: its rank is not known here
        "{ y = Gemm (x, w) }",
        "{ y = MatMul (x, w) }",
    ],
)
def test_other_forms_stay_as_they_are(body):
    found = model(body)
    split_biases(found.graph)
    assert found == model(body)

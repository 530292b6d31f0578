"""Folded graphs: PyTorch's answers with no more than the backbone's own products; and what must stay as it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import suite
from method_examples import examples
from onnx import numpy_helper

from edgepeft.backbones.source import open_backbone
from edgepeft.graph.external_data import external_values, load_external
from edgepeft.graph.protos import copied, external_tensors
from edgepeft.graph.standalone import fold_linear
from edgepeft.methods.base import methods

PRODUCTS = {"MatMul", "Gemm"}


def whole(case: suite.Case) -> onnx.ModelProto:
    model = copied(case.spliced)
    load_external(model, external_values(model, [*external_tensors(model.graph)], case.backbone.checkpoint))
    return model


def count(model: onnx.ModelProto) -> Counter[str]:
    found = Counter("product" if node.op_type in PRODUCTS else node.op_type for node in model.graph.node)
    return Counter({name: found[name] for name in ("product", "Mul", "Sub")})


def n_weights(model: onnx.ModelProto) -> int:
    return sum(numpy_helper.to_array(tensor).size for tensor in model.graph.initializer)


@pytest.mark.parametrize(
    "family, name",
    [
        ("bert", "dora"),
        *(pytest.param("bert", name, marks=pytest.mark.slow) for name in ("lora", "ia3", "loha", "vera")),
        *(pytest.param(family, "lora", marks=pytest.mark.slow) for family in ("roberta", "distilbert", "deberta-v2")),
    ],
)
def test_an_update_of_linear_layers_costs_nothing_and_changes_no_answer(tiny, family, name):
    backbone = open_backbone(str(tiny(family, mean=True)))
    bare, case = (suite.Case(examples(methods()[each])[0], backbone) for each in ("linear", name))
    expected, model, before = whole(bare), whole(case), n_weights(whole(case))
    fold_linear(expected)
    assert count(model) != count(expected)
    fold_linear(model)
    assert count(model) == count(expected)
    assert n_weights(model) < before
    case.session = case._session(model)
    suite.torch_equals_onnxruntime(case)


@pytest.mark.parametrize(
    "family, name",
    [
        pytest.param("roformer", "lora", marks=pytest.mark.slow),  # not all of it is
        pytest.param("modernbert", "lora", marks=pytest.mark.slow),  # query, key and value are parts of one product
        *(
            pytest.param("bert", name, marks=pytest.mark.slow)
            for name in ("mam", "pfeiffer", "bitfit", "lokr", "prefix", "prompt-t", "spartan")
        ),
    ],
)
def test_what_is_more_than_linear_answers_as_before(tiny, family, name):
    case = suite.Case(examples(methods()[name])[0], open_backbone(str(tiny(family))))
    model = whole(case)
    fold_linear(model)
    case.session = case._session(model)
    suite.torch_equals_onnxruntime(case)


def test_layers_that_share_a_matrix_go_on_sharing_it(tiny):
    case = suite.Case(examples(methods()["lora"])[0], open_backbone(str(tiny("albert"))))
    model, before = whole(case), n_weights(whole(case))
    fold_linear(model)
    assert n_weights(model) <= before
    case.session = case._session(model)
    suite.torch_equals_onnxruntime(case)


def parsed(nodes: str, outputs: str = "float[N, 3] y") -> onnx.ModelProto:
    """x [N, 4] in; constants w [4, 3], v [3, 4], a [4, 1], b [1, 3], bias [3], scale [3], two []."""
    text = f'<ir_version: 10, opset_import: ["": 20]> graph (float[N, 4] x) => ({outputs}) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    shapes = {"w": (4, 3), "v": (3, 4), "a": (4, 1), "b": (1, 3), "bias": (3,), "scale": (3,), "two": ()}
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in shapes.items():
        value = np.asarray(random.normal(size=shape), np.float32)
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize(
    "nodes",
    [
        "p = MatMul (x, w) q = Add (p, bias) d = MatMul (x, a) s = Mul (two, d) u = MatMul (s, b) y = Add (u, q)",
        "p = Gemm <transB = 1> (x, v, bias) y = Mul (p, scale)",
        "p = Gemm <transB = 1> (x, v, bias) q = Sub (p, bias) r = Mul (q, scale) y = Add (r, bias)",
        "t = MatMul (a, b) z = Add (w, t) p = MatMul (x, z) y = Mul (p, two)",
    ],
)
def test_what_is_linear_becomes_one_product(nodes: str):
    model = parsed(nodes)
    before = run(model)
    fold_linear(model)
    assert [node.op_type for node in model.graph.node] in (["MatMul"], ["MatMul", "Add"])
    np.testing.assert_allclose(run(model)[0], before[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "nodes, outputs",
    [
        ("d = MatMul (x, a) y = MatMul (d, b)", "float[N, 3] y"),  # a bottleneck: 7 weights, one product has 12
        ("y = MatMul (x, w) z = Mul (y, scale)", "float[N, 3] y, float[N, 3] z"),
        ("p = MatMul (x, w) q = Mul (p, scale) r = Relu (p) y = Add (q, r)", "float[N, 3] y"),
        ("p = MatMul (x, w) q = Mul (x, x) r = MatMul (q, w) y = Add (p, r)", "float[N, 3] y"),
        ("p = Gemm <alpha = 2.0> (x, w, bias) y = Mul (p, scale)", "float[N, 3] y"),
        ("p = Gemm <beta = 2.0> (x, w, bias) y = Mul (p, scale)", "float[N, 3] y"),
    ],
)
def test_what_others_read_or_what_would_be_more_weights_stays(nodes: str, outputs: str):
    model = parsed(nodes, outputs)
    before = copied(model)
    fold_linear(model)
    assert [node.op_type for node in model.graph.node] == [node.op_type for node in before.graph.node]
    assert {tensor.name for tensor in model.graph.initializer} == {tensor.name for tensor in before.graph.initializer}

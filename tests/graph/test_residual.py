"""A sum that is there already is taken: the same values with an addition less, and everything else left alone."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tolerance import error_of_sums

from edgepeft.graph.cut import prune
from edgepeft.graph.splice import share_residual_sums

GIVEN = {name: np.random.default_rng(i).normal(size=(3, 2)).astype(np.float32) for i, name in enumerate("yrc")}


def model(body: str, outputs: str) -> onnx.ModelProto:
    shaped = ", ".join(f"float[n, 2] {name}" for name in outputs)
    header = '<ir_version: 10, opset_import: ["" : 20]>\nm (float[n, 2] y, float[n, 2] r, float[n, 2] c)'
    return onnx.parser.parse_model(f"{header} => ({shaped}) {body}")


def rewritten(body: str, outputs: str) -> onnx.ModelProto:
    found = model(body, outputs)
    share_residual_sums(found.graph)
    prune(found.graph)
    onnx.checker.check_model(found, full_check=True)
    for ours, theirs in zip(
        ReferenceEvaluator(found).run(None, GIVEN),
        ReferenceEvaluator(model(body, outputs)).run(None, GIVEN),
        strict=True,
    ):
        # At most y four times over, in three sums; Tanh moves no further apart what it is given.
        error = 2 * error_of_sums(4, 4 * sum(map(np.abs, GIVEN.values())))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=error)
    return found


@pytest.mark.parametrize("last", ["Add(a, r)", "Add(r, a)"])
@pytest.mark.parametrize("inner", ["Add(y, c)", "Add(c, y)"])
@pytest.mark.parametrize("first", ["Add(y, r)", "Add(r, y)"])
def test_an_addition_is_saved_whatever_the_order_of_its_terms(first, inner, last):
    found = rewritten(f"{{ s = {first} t = Tanh(s) a = {inner} z = {last} }}", "tz")
    assert [node.op_type for node in found.graph.node].count("Add") == 2


@pytest.mark.parametrize(
    ("body", "outputs", "additions"),
    [
        ("{ s = Add(y, r) a = Add(y, c) z = Add(a, r) t = Tanh(a) }", "stz", 3),  # another reader of y + c
        ("{ s = Add(y, r) a = Add(y, c) z = Add(a, r) }", "saz", 3),  # the graph's own output
        ("{ a = Add(y, c) z = Add(a, r) }", "z", 2),  # no y + r
        ("{ s = Sub(y, r) a = Add(y, c) z = Add(a, r) }", "sz", 2),
        ("{ s = Add(y, r) a = Mul(y, c) z = Add(a, r) }", "sz", 2),
    ],
)
def test_other_sums_are_left_alone(body, outputs, additions):
    found = rewritten(body, outputs)
    assert [node.op_type for node in found.graph.node].count("Add") == additions


def test_a_doubled_value_closes_no_circle():
    rewritten("{ s = Add(y, y) a = Add(s, y) z = Add(a, y) }", "z")

"""Each rule alone against finite differences in float64: shapes of 0 and 1, repeated operands, negative axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from edgepeft.common.errors import BundleError
from edgepeft.graph.gradient import rule as gradient_rule
from edgepeft.graph.gradient.rule import INTEGER_PRODUCT, differentiate, rules
from edgepeft.graph.shapes import value_specs

OPERATORS = set(rules()) - {INTEGER_PRODUCT}  # that one has a file of its own
STEP = 1e-6
NEAR = 1e-7  # of a derivative of about 1: rounding, 2**-53 / STEP, and what a step of that length bends, STEP**2


class Erf(OpRun):
    """In float64: ONNX's own reference rounds it to float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        gelu = torch.nn.functional.gelu(torch.from_numpy(np.asarray(x)), approximate=approximate or "none")
        return (gelu.numpy(),)


class Numbers:
    """A constant operand, beside those that gradients are asked of."""

    def __init__(self, values: Any) -> None:
        self.array = np.asarray(values)


def ints(*values: Any) -> Numbers:
    return Numbers(np.array(values, np.int64))


def case(op: str, *inputs: Any, name: str = "", **attributes: Any) -> Any:
    """``inputs`` are shapes of what is differentiated by, or numbers; None leaves one out."""
    shapes = "-".join("x".join(map(str, i)) if isinstance(i, tuple) else "c" for i in inputs)
    flags = "-".join(f"{n}={v}" for n, v in attributes.items())
    return pytest.param(op, inputs, attributes, id=name or "-".join(filter(None, (op, shapes, flags))))


COORDINATES = Numbers([[True, False, True]])
CASES = [
    *(
        case(op, *shapes)
        for op in ("Add", "Sub", "Mul", "Div")
        for shapes in (
            ((3, 4), (3, 4)),
            ((2, 1, 3), (4, 1)),
            ((4,), ()),
            ((1, 3), (2, 3)),
            ((0, 3), (3,)),
            ((0,), (1,)),
        )
    ),
    *(
        case(op, shape)
        for op in ("Neg", "Relu", "LeakyRelu", "Exp", "Tanh", "Sigmoid", "Softplus", "Mish", "Gelu", "Identity")
        for shape in ((3, 4), (1,), (), (0, 2))
    ),
    *(case("Sqrt", shape) for shape in ((3, 4), (), (0, 2))),
    case("LeakyRelu", (5,), alpha=0.3),
    case("Gelu", (3, 4), approximate="tanh"),
    case("Clip", (20,), Numbers(-0.5), Numbers(0.7)),
    case("Clip", (20,), Numbers(-0.5), name="Clip-below"),
    case("Clip", (20,), None, Numbers(0.7), name="Clip-above"),
    case("Clip", (3,), name="Clip-nowhere"),
    *(case("Pow", shape, Numbers(2.0), name=f"Pow-{shape}") for shape in ((3, 4), (0, 2), ())),
    case("Pow", (3, 4), Numbers([3.0]), name="Pow-three"),
    case("Cast", (3, 2), to=TensorProto.DOUBLE),
    case("Where", COORDINATES, (2, 3), (2, 3)),
    case("Expand", (2, 1, 3), ints(4, 2, 5, 3)),
    case("Expand", (3,), ints(2, 3), name="Expand-leading"),
    case("Expand", (2, 3), ints(2, 3), name="Expand-nothing"),
    case("Where", COORDINATES, (), (4, 1)),
    *(
        case("Gemm", a[::-1] if flags[0] else a, b[::-1] if flags[1] else b, transA=flags[0], transB=flags[1])
        for a, b in (((2, 3), (3, 4)), ((1, 3), (3, 1)), ((0, 3), (3, 2)))
        for flags in ((0, 0), (0, 1), (1, 0), (1, 1))
    ),
    *(case("Gemm", (2, 3), (3, 4), c, alpha=0.5, beta=2.0) for c in ((4,), (1, 4), (2, 1), (2, 4), ())),
    *(
        case("MatMul", *shapes)
        for shapes in (
            ((2, 3), (3, 4)),
            ((5, 2, 3), (3, 4)),
            ((2, 3), (5, 3, 4)),
            ((2, 1, 2, 3), (5, 3, 4)),
            ((2, 5, 1, 3), (2, 5, 3, 1)),
            ((0, 3), (3, 4)),
            ((0, 2, 3), (0, 3, 2)),
        )
    ),
    case("Einsum", (2, 3, 4), (2, 5, 6), equation="iab,ice->beac"),
    case("Einsum", (2, 3), (3, 4), (4,), equation="ab,bc,c->a"),
    case("Einsum", (2, 3), equation="ab->ba"),
    *(case("LayerNormalization", (2, 3, 4), (4,), (4,), epsilon=eps) for eps in (1e-12, 0.1)),
    case("LayerNormalization", (2, 3, 4), (3, 4), (3, 4), axis=1),
    case("LayerNormalization", (2, 3, 4), (3, 4), axis=-2),
    case("LayerNormalization", (0, 4), (4,), (4,)),
    *(case(op, (2, 3, 4), axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (0, 1, -1)),
    *(case(op, shape) for op in ("Softmax", "LogSoftmax") for shape in ((3, 1), (0, 3))),
    case("Reshape", (2, 3, 4), ints(0, -1)),
    case("Reshape", (0, 3), ints(3, 0), allowzero=1),
    case("Squeeze", (2, 1, 3, 1), ints(-1)),
    case("Squeeze", (2, 1, 3, 1), name="Squeeze-all"),
    case("Unsqueeze", (2, 3), ints(-1, 0)),
    case("Transpose", (2, 3, 4)),
    case("Transpose", (2, 3, 4), perm=[2, 0, 1]),
    case("Slice", (4, 5), ints(1), ints(-1), ints(-2)),
    case("Slice", (4, 5), ints(-3, 0), ints(2**40, 2), name="Slice-all-axes"),
    case("Slice", (4, 5), ints(2), ints(2), ints(0), ints(1), name="Slice-nothing"),
    case("Concat", (2, 3), (4, 3), (2, 3), axis=0),
    case("Concat", (2, 3), Numbers([[7.0], [8.0]]), (2, 0), axis=-1),
    *(case("ReduceSum", (2, 3, 4), axes, keepdims=keep) for axes in (ints(-1), ints(0, 2)) for keep in (0, 1)),
    case("ReduceSum", (2, 3)),
    case("ReduceSum", (2, 3), ints(), noop_with_empty_axes=1, name="ReduceSum-over-nothing"),
    case("ReduceSum", (0, 3), ints(0)),
    *(case("ReduceMean", (2, 3, 4), axes, keepdims=keep) for axes in (ints(-1), ints(0, 2)) for keep in (0, 1)),
    case("ReduceMean", (2, 3)),
    case("ReduceMean", (0, 3), ints(1)),
    *(case("ReduceMax", (2, 3, 4), axes, keepdims=keep) for axes in (ints(-2), ints(0, 2)) for keep in (0, 1)),
    case("ReduceMax", (2, 3), keepdims=0),
    case("ReduceMax", (2, 3), ints(), noop_with_empty_axes=1, name="ReduceMax-over-nothing"),
    case("Gather", (301, 2), ints([0, 300], [-1, 0]), name="Gather-of-many"),
    case("Gather", (2, 301), ints([0, 300], [-1, 0]), axis=1, name="Gather-of-many-columns"),
    case("Gather", (301,), Numbers(np.zeros(0, np.int64)), name="Gather-nothing-of-many"),
    case("Gather", (5, 3), ints([0, 2], [-1, 2]), name="Gather-twice-and-from-the-end"),
    case("Gather", (5, 3), ints([0, 2], [-1, 2]), axis=1, name="Gather-columns"),
    case("Gather", (2, 5, 3), ints(1, 1), axis=-2, name="Gather-in-the-middle"),
    case("Gather", (2, 4, 3), ints(2, 0, 3, 1), axis=1, name="Gather-all-in-another-order"),
    case("Gather", (5, 3), Numbers(np.int64(4)), name="Gather-one"),
    case("Gather", (5,), ints(4, 4, 4), name="Gather-numbers"),
    case("Gather", (5, 3), Numbers(np.zeros(0, np.int64)), name="Gather-nothing"),
    case("GatherND", (5, 3), ints([[0], [4], [0]]), name="GatherND-rows"),
]


class Alone:
    """One node, the sum of its result by random weights, and the gradients of that by the node's operands."""

    def __init__(self, op: str, inputs: tuple[Any, ...], attributes: dict[str, Any], kind: int = TensorProto.DOUBLE):
        source = np.random.default_rng(0)
        names = ["" if given is None else f"x{i}" for i, given in enumerate(inputs)]
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        self.given = {
            n: source.normal(size=i).astype(dtype) for n, i in zip(names, inputs, strict=True) if isinstance(i, tuple)
        }
        if op == "Sqrt":
            self.given = {n: np.asarray(np.abs(x) + 0.5) for n, x in self.given.items()}
        node = helper.make_node(op, names, ["y"], **attributes)
        constants = [
            numpy_helper.from_array(i.array if i.array.dtype.kind in "bi" else i.array.astype(dtype), n)
            for n, i in zip(names, inputs, strict=True)
            if isinstance(i, Numbers)
        ]
        values = [helper.make_tensor_value_info(n, kind, x.shape) for n, x in self.given.items()]
        graph = helper.make_graph([node], "alone", values, [helper.make_tensor_value_info("y", kind, None)], constants)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        (y,) = self.run(["y"], self.given)
        weights = source.normal(size=y.shape).astype(dtype)
        graph = self.model.graph
        graph.initializer.append(numpy_helper.from_array(weights, "weights"))
        graph.node.append(helper.make_node("Mul", ["y", "weights"], ["weighted"]))
        graph.node.append(helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0))
        self.found = differentiate(graph, "loss", list(self.given), [value_specs(self.model, {})])

    def run(self, outputs: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        return [np.asarray(value) for value in ReferenceEvaluator(model, new_ops=[Erf, Gelu]).run(outputs, given)]

    def gradients(self) -> dict[str, np.ndarray]:
        values = self.run(list(self.found.values()), self.given)
        return dict(zip(self.found, values, strict=True))

    def differences(self, name: str) -> np.ndarray:
        x = self.given[name]
        slopes = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = x.copy()
                moved[at] += step
                sides.append(float(self.run(["loss"], {**self.given, name: moved})[0]))
            slopes[at] = (sides[0] - sides[1]) / (2 * STEP)
        return slopes


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES)
def test_a_rule_gives_what_finite_differences_give(op: str, inputs: tuple[Any, ...], attributes: dict[str, Any]):
    alone = Alone(op, inputs, attributes)
    for name, gradient in alone.gradients().items():
        expected = alone.differences(name)
        assert gradient.shape == expected.shape and gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=NEAR * (1 + np.abs(expected).max(initial=0)))


def test_every_rule_is_among_them():
    assert {case.values[0] for case in CASES} == OPERATORS


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_a_rule_that_is_wrong_is_found(op: str, monkeypatch: pytest.MonkeyPatch):
    """1.001 times what it should be: of one of its cases at least."""
    right = rules()

    def wrong(at: Any) -> Any:
        yield from ((i, at.op("Mul", gradient, at.number(1.001))) for i, gradient in right[op](at))

    monkeypatch.setattr(gradient_rule, "rules", lambda: {**right, op: wrong})
    _, inputs, attributes = next(c.values for c in CASES if c.values[0] == op)
    alone = Alone(op, inputs, attributes)
    found = alone.gradients()
    assert any(not np.allclose(g, alone.differences(name), rtol=1e-5, atol=1e-6) for name, g in found.items())


def test_all_that_reach_the_maximum_share_its_gradient_as_in_pytorch():
    alone = Alone("ReduceMax", ((2, 3), ints(1)), {"keepdims": 0})
    alone.given["x0"] = np.array([[1.0, 2, 2], [3, 3, 3]])
    x = torch.tensor(alone.given["x0"], requires_grad=True)
    weights = numpy_helper.to_array(next(i for i in alone.model.graph.initializer if i.name == "weights"))
    (torch.amax(x, 1) * torch.from_numpy(weights.copy())).sum().backward()
    np.testing.assert_allclose(alone.gradients()["x0"], x.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "said"),
    [
        ("Cos", ((3,),), {}, "no gradient of Cos"),
        ("MatMul", ((3,), (3, 2)), {}, "no gradient of MatMul with a vector"),
        ("Einsum", ((3, 3),), {"equation": "aa->a"}, "no gradient of Einsum of aa->a"),
        ("Slice", ((5,), ints(0), ints(5), ints(0), ints(2)), {}, "no gradient of Slice by steps"),
        ("GatherND", ((3, 4), ints([0, 1])), {}, "no gradient of GatherND by several axes"),
    ],
)
def test_what_has_no_gradient_is_refused_by_name(op: str, inputs: Any, attributes: Any, said: str):
    with pytest.raises(BundleError, match=said):
        Alone(op, inputs, attributes)


@pytest.mark.parametrize(("start", "end"), [("two", "size"), ("back", "size"), ("zero", "two"), ("size", "size")])
def test_what_a_slice_leaves_out_has_no_gradient_where_its_bounds_follow_from_the_batch(start: str, end: str):
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (double[rows, 3] x) => (double loss) {{
            zero = Constant <value_ints = [0]> () two = Constant <value_ints = [2]> () size = Shape <end = 1> (x)
            half = Div (size, two) back = Neg (half)
            y = Slice ({start}, {end}) loss = ReduceSum <keepdims = 0> (y)
        }}""".replace(f"Slice ({start}", f"Slice (x, {start}")
    )
    found = differentiate(model.graph, "loss", ["x"], [value_specs(model, {"rows": n}) for n in (4, 7)])
    model.graph.output[0].name = found["x"]
    for rows in (4, 5, 7):
        x = np.ones((rows, 3))
        bounds = {"zero": 0, "two": 2, "size": rows, "back": -(rows // 2)}
        expected = np.zeros_like(x)
        expected[bounds[start] : bounds[end]] = 1
        (gradient,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_array_equal(gradient, expected)


def test_a_tensor_that_the_loss_does_not_depend_on_is_refused_by_name():
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[3] x, float[3] unread) => (float loss) { y = Tanh (x) loss = ReduceSum <keepdims = 0> (y) }"""
    )
    with pytest.raises(BundleError, match="does not depend on unread, which is to be trained"):
        differentiate(graph.graph, "loss", ["x", "unread"], [value_specs(graph, {})])


def test_a_path_through_counts_has_no_gradient_and_others_are_summed():
    """x + x where x is above what it is compared with: the comparison is no path, the two sums are."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (double[3] x) => (double loss) {
            zero = Constant <value = double {0.0}> ()
            above = Greater (x, zero) number = Cast <to = 11> (above)
            twice = Add (x, x) part = Mul (twice, number) loss = ReduceSum <keepdims = 0> (part)
        }"""
    )
    found = differentiate(model.graph, "loss", ["x"], [value_specs(model, {})])
    model.graph.output[0].name = found["x"]
    (gradient,) = ReferenceEvaluator(model).run(None, {"x": np.array([1.0, -1.0, 2.0])})
    np.testing.assert_array_equal(gradient, [2.0, 0.0, 2.0])


def test_rows_that_are_looked_up_often_have_the_same_gradient_with_any_number_of_threads():
    """ONNX Runtime's ScatterND that adds loses terms where threads meet in one row."""
    index = np.random.default_rng(0).integers(0, 3, 4096)
    alone = Alone("Gather", ((50, 64), Numbers(index)), {}, TensorProto.FLOAT)
    expected = np.zeros((50, 64), np.float64)
    weights = next(numpy_helper.to_array(i) for i in alone.model.graph.initializer if i.name == "weights")
    np.add.at(expected, index, weights.astype(np.float64))
    model = alone.model
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(alone.found["x0"], TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 8
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for _ in range(20):
        (found,) = session.run(None, alone.given)
        np.testing.assert_allclose(found, expected, rtol=0, atol=4096 * 2.0**-24 * np.abs(weights).sum(0).max())


def test_what_is_there_already_is_not_computed_again(monkeypatch: pytest.MonkeyPatch):
    """The gradient of tanh needs y y, which the graph has."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[3] x) => (float loss) {
            y = Tanh (x) square = Mul (y, y) z = Add (square, y) loss = ReduceSum <keepdims = 0> (z)
        }"""
    )
    differentiate(model.graph, "loss", ["x"], [value_specs(model, {})])
    products = [tuple(node.input) for node in model.graph.node if node.op_type == "Mul"]
    assert len(products) == len(set(products)) and ("y", "y") in products

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import suite
import torch
from method_examples import examples
from onnx import parser
from torch.utils.flop_counter import FlopCounterMode

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError
from edgepeft.common.operators import OperatorClass, product_flops
from edgepeft.graph.cost import PER_ELEMENT, count_run
from edgepeft.graph.splice import splice
from edgepeft.methods.base import method_named, methods

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
# Those whose weights are products of smaller ones: folded when a session opens, computed in every step by torch.
MADE_OF_PRODUCTS = {"dora", "compacter", "compacter++", "phm", "adapter-lowrank", "intrinsic-said", "lokr"}
LENGTHENED = {"mam", "prefix"}  # which fast attention alone has, whose products torch does not count


def model(body, opset=20):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{body}')


def only(graph, **inputs):
    """The one node that does something."""
    works = [work for work in count_run(graph, inputs).works if work.kind is not OperatorClass.NONE]
    assert len(works) == 1
    return works[0]


def floats(*shape):
    return np.zeros(shape, np.float32)


@pytest.fixture(scope="module")
def whole(tiny):
    """(method, shape) -> the task's whole graph and its inputs, with torch's count of the same."""
    backbone = open_backbone(str(tiny("bert")))

    def made(method, batch=3, length=7):
        case = suite.Case(method, backbone)
        case.model = load_model(backbone, "eager")
        graph = backbone.architecture.graph(backbone.checkpoint)
        graph = splice(graph, case.graph, backbone.architecture.bindings, backbone.checkpoint)
        rows = {"input_ids": torch.full((batch, length), 7), "attention_mask": torch.ones(batch, length).long()}
        rows["token_type_ids"] = torch.zeros(batch, length).long()
        with FlopCounterMode(display=False) as counter:
            case.logits(case.moved, rows)
        unread = 2 * batch * backbone.architecture.hidden_size**2  # transformers' own pooler, beside the head's
        return graph, {name: value.numpy() for name, value in rows.items()}, counter.get_total_flops() - unread

    return made


@pytest.mark.parametrize("name", sorted(set(methods()) - MADE_OF_PRODUCTS - LENGTHENED))
def test_products_without_padding_cost_what_torchs_own_counter_says(whole, name):
    graph, inputs, expected = whole(examples(method_named(name))[0])
    found = count_run(graph, inputs)
    assert product_flops(found.works) == expected
    assert found.unknown == ()


@pytest.mark.parametrize("name", sorted(MADE_OF_PRODUCTS))
def test_a_weight_made_of_smaller_ones_costs_nothing_in_a_run(whole, name):
    graph, inputs, torchs = whole(examples(method_named(name))[0])
    bare, _, _ = whole(examples(method_named("bitfit"))[0])
    found = count_run(graph, inputs)
    assert product_flops(count_run(bare, inputs).works) <= product_flops(found.works) < torchs
    assert found.unknown == ()


def test_padding_costs_attention_and_nothing_else(whole):
    graph, inputs, _ = whole(examples(method_named("lora"))[0], batch=2, length=8)
    full = {work.name: work for work in count_run(graph, inputs).works}
    inputs["attention_mask"][1, 3:] = 0  # 11 of 16 tokens are real
    ragged = {work.name: work for work in count_run(graph, inputs).works}
    projections = [name for name, work in full.items() if work.op == "Gemm" and work.flops % 16 == 0]
    attention = [name for name, work in full.items() if work.op == "Softmax"]
    assert len(projections) >= 12 and len(attention) == 2
    for name in projections[:12]:
        assert ragged[name].flops * 16 == full[name].flops * 11
    for name in attention:
        assert ragged[name].flops == full[name].flops


@pytest.mark.parametrize(
    ("options", "shape", "kernel", "kind"),
    [
        ({"stride": 1, "padding": 1}, (2, 6, 9, 7), (8, 6, 3, 3), OperatorClass.CONV_3X3),
        ({"stride": 2, "padding": 3}, (1, 3, 20, 20), (4, 3, 7, 7), OperatorClass.CONV),
        ({"stride": 1, "groups": 6, "padding": 1}, (1, 6, 9, 9), (6, 1, 3, 3), OperatorClass.CONV_DEPTHWISE),
        ({"stride": 1}, (1, 6, 5, 5), (4, 6, 1, 1), OperatorClass.CONV),
        ({"stride": 4}, (1, 3, 8, 8), (5, 3, 4, 4), OperatorClass.MATRIX),
    ],
)
def test_a_convolution_costs_what_torchs_own_counter_says(options, shape, kernel, kind):
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.conv2d(torch.zeros(shape), torch.zeros(kernel), torch.zeros(kernel[0]), **options)
    pads, stride = options.get("padding", 0), options["stride"]
    node = f"strides=[{stride},{stride}], pads=[{pads},{pads},{pads},{pads}], group={options.get('groups', 1)}"
    sizes = [",".join(map(str, each)) for each in (shape, kernel, kernel[:1])]
    graph = model(
        f"g (float[{sizes[0]}] x, float[{sizes[1]}] w, float[{sizes[2]}] b) => (float y) {{ y = Conv <{node}> (x, w, b) }}"
    )
    work = only(graph, x=floats(*shape), w=floats(*kernel), b=floats(kernel[0]))
    assert (work.flops, work.kind) == (counter.get_total_flops(), kind)


def test_a_transposed_gemm_and_a_batched_product_are_counted_by_their_inner_dimension():
    gemm = model("g (float[5,3] x, float[7,5] w) => (float y) { y = Gemm <transA=1, transB=1> (x, w) }")
    assert only(gemm, x=floats(5, 3), w=floats(7, 5)).flops == 2 * 3 * 5 * 7
    batched = model("g (float[4,1,2,3] x, float[6,3,5] w) => (float y) { y = MatMul (x, w) }")
    assert only(batched, x=floats(4, 1, 2, 3), w=floats(6, 3, 5)).flops == 2 * 4 * 6 * 2 * 3 * 5
    vector = model("g (float[3] x, float[3,5] w) => (float y) { y = MatMul (x, w) }")
    assert only(vector, x=floats(3), w=floats(3, 5)).flops == 2 * 3 * 5
    einsum = model('g (float[2,3,4] x, float[4,5] w) => (float y) { y = Einsum <equation="bij,jk->bik"> (x, w) }')
    assert only(einsum, x=floats(2, 3, 4), w=floats(4, 5)).flops == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("node", "flops", "kind"),
    [
        ("y = Add (x, x)", 24, OperatorClass.ELEMENTWISE),
        ("y = Gelu (x)", 5 * 24, OperatorClass.ELEMENTWISE),
        ("y = Softmax <axis=-1> (x)", 5 * 24, OperatorClass.SOFTMAX),
        ("y = ReduceSum (x)", 24, OperatorClass.ELEMENTWISE),
        ("y = Transpose <perm=[1,0]> (x)", 0, OperatorClass.MOVE),
        ("y = Where (b, x, x)", 0, OperatorClass.ELEMENTWISE),
        ("y = Greater (x, x)", 24, OperatorClass.ELEMENTWISE),
    ],
)
def test_an_operator_counts_by_the_table(node, flops, kind):
    graph = model("g (float[4,6] x, bool[4,6] b) => (float y) { " + node + " }")
    work = only(graph, x=floats(4, 6), b=np.zeros((4, 6), bool))
    assert (work.flops, work.kind) == (flops, kind)


def test_a_gather_reads_the_rows_that_it_gives_and_a_view_nothing():
    graph = model("g (int64[5] i) => (float z) { y = Gather (table, i)  z = Reshape (y, shape) }")
    graph.graph.initializer.append(onnx.helper.make_tensor("table", onnx.TensorProto.FLOAT, [900, 6], [0.0] * 5400))
    graph.graph.initializer.append(onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [-1]))
    work = only(graph, i=np.zeros(5, np.int64))
    assert (work.kind, work.flops, work.written_bytes) == (OperatorClass.MOVE, 0, 5 * 6 * 4)
    assert work.read_bytes == 5 * 6 * 4 + 5 * 8 and work.weight_bytes == 5 * 6 * 4


def test_what_follows_from_constants_alone_is_folded_and_free():
    graph = model("g (float[2] x) => (float y) { v = Mul (w, w)  y = Add (x, v) }")
    graph.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    assert only(graph, x=floats(2)).op == "Add"


def test_an_operator_that_the_table_lacks_is_named():
    found = count_run(model("g (float[4] x) => (float y) { y = Celu (x) }"), {"x": floats(4)})
    assert found.unknown == ("Celu",) and sum(work.flops for work in found.works) == 0


def test_integers_are_no_floating_point_work():
    graph = model("g (int64[3] x) => (int64[3] y) { y = Add (x, x) }")
    work = only(graph, x=np.zeros(3, np.int64))
    assert (work.flops, work.kind, work.n_bytes) == (0, OperatorClass.INDEX, 3 * 8 * 3)


def test_a_shape_that_depends_on_weights_is_refused():
    graph = model("g (float[3] x) => (float y) { i = NonZero (w)  j = Squeeze (i)  y = Gather (x, j) }")
    graph.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [5000], [1.0] * 5000))
    with pytest.raises(BundleError, match="depends on weights"):
        count_run(graph, {"x": floats(3)})


def test_an_unknown_input_is_named():
    graph = model("g (float[3] x, float[3] other) => (float y) { y = Add (x, other) }")
    with pytest.raises(BundleError, match="'other'"):
        count_run(graph, {"x": floats(3)})


def stated():
    """Of docs/cost.md: operator -> FLOPs for each number."""
    found = {}
    for line in PAGE.split("## Everything else")[1].split("##")[0].splitlines():
        row = re.match(r"\| ([A-Z].*?) \| (\d+)", line)
        if row:
            found |= dict.fromkeys((name.strip(" .") for name in row[1].split(",")), int(row[2]))
    return found


def test_every_operator_of_the_page_counts_as_the_page_says():
    found = {name: count for name, count in stated().items() if name in PER_ELEMENT}
    assert len(found) > 45 and all(PER_ELEMENT[name] == count for name, count in found.items())


def test_every_operator_that_counts_is_on_the_page():
    assert {name for name, count in PER_ELEMENT.items() if count} <= set(stated())

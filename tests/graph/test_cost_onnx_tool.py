"""The same products counted by onnx-tool, where it is installed: it counts multiply-adds, half of our FLOPs."""

import pytest
from onnx import helper
from onnx.external_data_helper import load_external_data_for_model

from edgepeft.bundle.bundle import Bundle
from edgepeft.deploy.cost import bundle_cost, example_inputs
from edgepeft.graph.cost import count_run

onnx_tool = pytest.importorskip("onnx_tool")


def multiply_adds(graph, inputs):
    model = onnx_tool.Model(graph, {"constant_folding": True, "verbose": False})
    model.graph.shape_infer(inputs)
    model.graph.profile()
    products = {name: node for name, node in model.graph.nodemap.items() if node.op_type in ("MatMul", "Gemm", "Conv")}
    return {name: int(node.macs[0]) for name, node in products.items()}


@pytest.mark.parametrize("task", [None, "pair"])
def test_every_product_of_a_bundle_has_the_multiply_adds_of_onnx_tool(exported, task):
    bundle = Bundle(exported)
    graph = bundle.graph(task)
    load_external_data_for_model(graph, str(bundle.folder))
    expected = multiply_adds(type(graph).FromString(graph.SerializeToString()), example_inputs(bundle, 3, 7))
    found = {work.name: work.flops for work in bundle_cost(bundle, task, 3, 7).works}
    assert len(expected) > 15 and all(found[name] == 2 * count for name, count in expected.items())


def test_a_convolution_has_the_multiply_adds_of_onnx_tool():
    import numpy as np

    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2, 6, 9, 9]), ("y", None))]
    weight = helper.make_tensor("w", 1, [8, 3, 3, 3], [0.5] * 216)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[2, 2], pads=[1, 1, 1, 1], group=2)
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inputs = {"x": np.zeros((2, 6, 9, 9), np.float32)}
    assert count_run(model, inputs).works[0].flops == 2 * multiply_adds(model, inputs)["conv"]

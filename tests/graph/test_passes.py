"""Small passes on graphs written as ONNX text."""

import numpy as np
import onnx
import pytest

from edgepeft.common.errors import BundleError
from edgepeft.graph.cut import prune, rename_values, strip
from edgepeft.graph.half import half_initializers, is_half, store_in_half, widen
from edgepeft.graph.names import adapted_name, with_prefix, without_prefix
from edgepeft.graph.protos import copied

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def test_prune_sorts_nodes_behind_what_they_read_and_drops_the_rest():
    model = parsed("g (float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) dead = Exp(b) y = Add(a, b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    prune(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Neg", "Abs", "Add"]
    onnx.checker.check_model(model, full_check=True)


def test_prune_keeps_what_only_a_subgraph_reads():
    model = parsed(
        "g (bool c, float[2] x) => (float[2] y) { a = Neg(x) "
        "y = If (c) <then_branch = t () => (float[2] p) { p = Abs(a) }, else_branch = e () => (float[2] q) { q = Exp(a) }> }"
    )
    prune(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Neg", "If"]


def test_prune_refuses_a_circle():
    model = parsed("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }")
    with pytest.raises(BundleError, match="read its own output"):
        prune(model.graph)


def test_what_is_stored_in_half_precision_is_widened_to_the_graph_that_it_was():
    model = parsed(
        "g (float[200] x) => (float[200] y) "
        "{ s = Constant <value_ints = [200]> () flat = Reshape (m, s) a = Add (x, flat) y = Add (a, bias) }"
    )
    source = np.random.default_rng(0)
    for name, shape in {"bias": (200,), "m": (2, 100)}.items():
        values = source.normal(size=shape).astype(np.float16).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    before = copied(model)
    assert half_initializers(model.graph) == {"m"}  # a vector is not worth a Cast
    store_in_half(model.graph)
    assert is_half(model.graph) and not half_initializers(model.graph)
    widen(model.graph)
    assert model == before


def test_rename_reaches_inputs_outputs_initializers_and_subgraphs():
    model = parsed(
        "g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add(x, w) "
        "y = If (c) <then_branch = t () => (float[2] p) { p = Abs(a) }, else_branch = e () => (float[2] q) { q = Exp(a) }> }"
    )
    rename_values(model.graph, lambda name: f"{name}!")
    onnx.checker.check_model(model)
    text = onnx.printer.to_text(model)
    assert "a!" in text and model.graph.initializer[0].name == "w!" and model.graph.output[0].name == "y!"


def test_strip_leaves_no_trace_of_the_machine():
    model = parsed("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.node[0].doc_string = "/home/me/file.py"
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.stack_trace", "File /home/me/file.py"
    model.graph.input[0].doc_string = "/home/me"
    strip(model)
    assert b"/home/me" not in model.SerializeToString()


@pytest.mark.parametrize(
    ("name", "kind", "rest"),
    [
        (adapted_name("layer.0.query"), "adapted", "layer.0.query"),
        (with_prefix("override", "a.bias"), "override", "a.bias"),
        (with_prefix("weight", "a.bias"), "weight", "a.bias"),
        ("layer.0.query.input", "", "layer.0.query.input"),
    ],
)
def test_names_are_read_as_they_are_written(name, kind, rest):
    assert without_prefix(name) == (kind, rest)

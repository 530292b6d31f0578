"""Models that protobuf takes and nobody can work with are refused, and the place is named."""

import onnx
import pytest
from onnx import TensorProto, helper

from edgepeft.errors import BundleError
from edgepeft.graph.sound import check_sound


def model():
    """Names in every place that has one; the tensors stand in the graph, a node and a branch of control flow."""
    stored = helper.make_tensor("stored", TensorProto.FLOAT, [2, 3], b"\0" * 24, raw=True)
    branch = helper.make_graph([helper.make_node("Identity", ["inner"], ["y"])], "branch", [], [], [stored])
    nodes = [
        helper.make_node(
            "Constant", [], ["constant"], value=helper.make_tensor("held", TensorProto.INT64, [2], [1, 2])
        ),
        helper.make_node("If", ["c"], ["y"], "chosen", then_branch=branch, else_branch=branch),
    ]
    value = helper.make_tensor_value_info("given", TensorProto.FLOAT, ["rows"])
    found = helper.make_model(helper.make_graph(nodes, "graph", [value], [], [stored]))
    helper.set_model_props(found, {"edgepeft.card": "facts"})
    return found


def test_a_sound_model_is_taken():
    check_sound(model(), "x.onnx")


def test_a_tensor_in_another_file_is_not_read():
    found = model()
    tensor = found.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    check_sound(found, "x.onnx")


@pytest.mark.parametrize("name", ["stored", "inner", "chosen", "given", "rows", "edgepeft.card", "facts", "branch"])
def test_a_name_that_is_no_text_is_refused_wherever_it_stands(name):
    content = model().SerializeToString()
    damaged = onnx.load_model_from_string(content.replace(name.encode(), b"\xff" + name.encode()[1:]))
    with pytest.raises(BundleError, match=r"x\.onnx is damaged.*UTF-8"):
        check_sound(damaged, "x.onnx")


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("dims", [[2, 4], [-1, 3], [1 << 40]])
def test_a_tensor_that_is_smaller_than_its_shape_is_refused(place, dims):
    found = model()
    constant, choice = found.graph.node
    tensor = {
        "initializer": found.graph.initializer[0],
        "constant": constant.attribute[0].t,
        "branch": choice.attribute[0].g.initializer[0],
    }[place]
    del tensor.dims[:]
    tensor.dims.extend(dims)
    with pytest.raises(BundleError, match=r"x\.onnx is damaged.*cannot be read"):
        check_sound(found, "x.onnx")


def test_a_tensor_of_an_unknown_type_is_refused():
    found = model()
    found.graph.initializer[0].data_type = 999
    with pytest.raises(BundleError, match="cannot be read"):
        check_sound(found, "x.onnx")

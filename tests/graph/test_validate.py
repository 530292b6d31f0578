"""A graph that edgepeft cannot have written is refused before ONNX Runtime sees it, and the place is named."""

import onnx
import pytest
from onnx import TensorProto, helper

from edgepeft.common.errors import BundleError
from edgepeft.graph.validate import OPERATORS, check_sound

WEIGHTS = "model.safetensors"


def stored(dims=(2, 3), name="stored"):
    return helper.make_tensor(name, TensorProto.FLOAT, dims, b"\0" * 24, raw=True)


def external(location=WEIGHTS, length=4, dims=(1,), **more):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": 0, "length": length, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(*initializers, nodes=None):
    """Names in every place that has one; a tensor in the graph and one in a node."""
    held = helper.make_tensor("held", TensorProto.INT64, [2], [1, 2])
    own = [helper.make_node("Constant", [], ["constant"], "chosen", value=held)]
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, ["rows"])
    graph = helper.make_graph(own if nodes is None else nodes, "graph", [given], [], initializers or [stored()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    helper.set_model_props(made, {"edgepeft.card": "facts"})
    return made


def refused(made, words, weights=WEIGHTS):
    before = made.SerializeToString()
    with pytest.raises(BundleError, match=rf"x\.onnx.*{words}"):
        check_sound(made, "x.onnx", weights)
    assert made.SerializeToString() == before


def test_what_we_write_is_taken():
    check_sound(model(), "x.onnx")
    check_sound(model(stored(), external()), "x.onnx", WEIGHTS)


@pytest.mark.parametrize("name", ["stored", "held", "chosen", "given", "rows", "edgepeft.card", "facts", "graph"])
def test_a_name_that_is_no_text_is_refused_wherever_it_stands(name):
    content = model().SerializeToString()
    damaged = onnx.load_model_from_string(content.replace(name.encode(), b"\xff" + name.encode()[1:]))
    with pytest.raises(BundleError, match=r"x\.onnx is damaged.*UTF-8"):
        check_sound(damaged, "x.onnx")


@pytest.mark.parametrize("location", ["/etc/passwd", "../../secret", "other.bin", "", "*/_ORT_MEM_ADDR_/*"])
def test_another_file_is_never_read(location):
    refused(model(external(location)), "wants to read the file")
    refused(model(external(location)), "wants to read the file", weights=None)
    constant = helper.make_node("Constant", [], ["c"], value=external(location))
    refused(model(nodes=[constant]), "wants to read the file")


def test_a_delta_reads_no_file_at_all():
    refused(model(external()), "whole by itself", weights=None)


@pytest.mark.parametrize("first", [True, False])
def test_a_location_that_stands_twice_is_refused_whichever_the_reader_takes(first):
    tensor = external()
    places = [WEIGHTS, "/etc/passwd"] if first else ["/etc/passwd", WEIGHTS]
    del tensor.external_data[:]
    for key, value in (("location", places[0]), ("location", places[1]), ("offset", "0"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    refused(model(tensor), "etc/passwd")
    tensor.external_data[0].value = tensor.external_data[1].value = WEIGHTS
    refused(model(tensor), "one location, offset and length")


@pytest.mark.parametrize(
    "more",
    [
        {"checksum": "00"},
        {"prepacked_0": "1"},
        {"offset": "-1"},
        {"offset": "9" * 30},
        {"offset": "1e3"},
        {"length": "5"},
        {"length": ""},
    ],
)
def test_external_data_states_what_we_state_and_no_more(more):
    refused(model(external(**more)), "one location, offset and length")


def test_external_data_without_a_place_is_refused():
    tensor = external()
    del tensor.external_data[:]
    refused(model(tensor), "wants to read")
    tensor = external()
    tensor.data_location = TensorProto.DEFAULT  # some readers look at the one, some at the other
    refused(model(tensor), "one location")


@pytest.mark.parametrize("dims", [[2, 4], [-1, 3], [1 << 40], [1 << 40, 1 << 40], [0]])
@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_a_tensor_of_another_size_than_its_shape_is_refused_and_nothing_is_allocated(place, dims):
    made = model()
    tensor = made.graph.initializer[0] if place == "initializer" else made.graph.node[0].attribute[0].t
    del tensor.dims[:]
    tensor.dims.extend(dims)
    refused(made, "damaged.*cannot be read")


@pytest.mark.parametrize("kind", [999, TensorProto.STRING, TensorProto.UNDEFINED, TensorProto.COMPLEX64])
def test_a_tensor_of_a_type_that_we_do_not_write_is_refused(kind):
    made = model()
    made.graph.initializer[0].data_type = kind
    refused(made, "cannot be read")


def test_a_tensor_in_two_fields_is_refused():
    made = model()
    made.graph.initializer[0].float_data.extend([1.0] * 6)
    refused(made, "cannot be read")


def test_scalars_and_empty_tensors_are_taken():
    scalar = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    empty = helper.make_tensor("e", TensorProto.INT64, [0], [])
    raw = helper.make_tensor("r", TensorProto.FLOAT, [0, 3], b"", raw=True)
    check_sound(model(scalar, empty, raw), "x.onnx")


def a_function():
    """``FunctionProto.attribute_proto`` holds defaults, tensors among them, which ONNX Runtime inlines."""
    made = model()
    function = helper.make_function("d", "f", [], ["w"], [], [helper.make_opsetid("", 20)])
    function.attribute_proto.append(helper.make_attribute("value", external("/etc/passwd")))
    made.functions.append(function)
    return made


def a_sparse_tensor():
    made = model()
    made.graph.sparse_initializer.add().values.CopyFrom(stored())
    return made


def training_information():
    made = model()
    made.training_info.add()
    return made


def a_domain():
    made = model()
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def a_node_of_another_domain():
    return model(nodes=[helper.make_node("Gelu", ["given"], ["y"], domain="com.microsoft")])


def a_branch():
    branch = helper.make_graph([], "branch", [], [], [stored()])
    return model(nodes=[helper.make_node("If", ["given"], ["y"], then_branch=branch, else_branch=branch)])


def a_branch_in_a_known_operator():
    branch = helper.make_graph([], "branch", [], [], [external("/etc/passwd")])
    return model(nodes=[helper.make_node("Add", ["given", "given"], ["y"], body=branch)])


def a_second_tensor_in_an_attribute():
    made = model()
    made.graph.node[0].attribute[0].tensors.append(external("/etc/passwd"))
    return made


def a_reference_to_an_attribute():
    made = model()
    made.graph.node[0].attribute[0].ref_attr_name = "value"
    return made


@pytest.mark.parametrize(
    "make",
    [
        a_function,
        a_sparse_tensor,
        training_information,
        a_domain,
        a_node_of_another_domain,
        a_branch,
        a_branch_in_a_known_operator,
        a_second_tensor_in_an_attribute,
        a_reference_to_an_attribute,
    ],
)
def test_what_onnx_allows_and_we_never_write_is_refused(make):
    refused(make(), "never writes")


@pytest.mark.parametrize("operator", ["If", "Loop", "Scan", "StringConcat", "RandomNormal", "NoSuchOperator", ""])
def test_operators_that_we_do_not_emit_are_refused(operator):
    assert operator not in OPERATORS
    refused(model(nodes=[helper.make_node(operator, ["given"], ["y"])]), "never writes")

"""Fields of a protobuf message are counted in its bytes, before a parser makes an object of each."""

import contextlib

import onnx
import pytest
from google.protobuf.message import Message
from onnx import TensorProto, helper

from edgepeft.bundle import bundle
from edgepeft.common.errors import BundleError
from edgepeft.graph.protos import submessages
from edgepeft.graph.validate import more_parts_than

MODEL = onnx.ModelProto.DESCRIPTOR


def model():
    nodes = [
        helper.make_node("Add", ["a", "b"], [f"c{i}"], axes=[1, 2, 3], scale=2.5, name="n" * 200) for i in range(5)
    ]
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [40], b"\x3a\x00" * 80, raw=True)  # bytes that look like nodes
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("a", 1, ["rows", 3])], [], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def fields(message):
    """Entries that the parsed message has, counted by protobuf's own reflection."""
    count = 0
    for part in submessages(message):
        for _, value in part.ListFields():
            count += 1 if isinstance(value, (str, bytes, int, float, Message)) else len(value)
    return count


def test_what_is_counted_is_what_protobuf_finds():
    made = model()
    content, exact = made.SerializeToString(), fields(made)
    assert 50 < exact < len(content)
    assert not more_parts_than(exact, content, MODEL)
    assert more_parts_than(exact - 1, content, MODEL)


EMPTY = {
    "nodes": b"\x3a\xc8\x01" + b"\x0a\x00" * 100,
    "attributes": b"\x3a\xcb\x01\x0a\xc8\x01" + b"\x2a\x00" * 100,
    "names": b"\x3a\xcb\x01\x0a\xc8\x01" + b"\x0a\x00" * 100,
    "metadata": b"\x72\x00" * 100,
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_messages_are_counted_and_refused_unparsed(name, tmp_path, monkeypatch):
    content, path = EMPTY[name], tmp_path / "x.onnx"
    path.write_bytes(content)
    parsed = onnx.ModelProto.FromString(content)
    assert fields(parsed) >= 100 and len(content) < 210
    monkeypatch.setattr(bundle, "MAX_PARTS", 102)
    with contextlib.suppress(BundleError):
        bundle.read_graph(path)
    monkeypatch.setattr(bundle, "MAX_PARTS", 98)
    monkeypatch.setattr(onnx, "load_model_from_string", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(BundleError, match=r"x\.onnx has more than 98"):
        bundle.read_graph(path)


def test_packed_integers_are_counted_as_what_they_become():
    tensor = TensorProto(int64_data=[1] * 1000, float_data=[1.0] * 1000)
    graph = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
    content = graph.SerializeToString()
    assert len(content) > 5000
    assert more_parts_than(1000 // 16, content, MODEL) and not more_parts_than(1000 // 16 + 10, content, MODEL)


def test_what_is_no_message_ends_its_own_count():
    for broken in (b"\xff" * 300, b"\x3a\xff\xff\xff\xff\x7f" + b"\x0b" * 300, b"\x3a", b"\x0c" * 300):
        assert more_parts_than(100, broken, MODEL) in (False, True)

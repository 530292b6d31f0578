"""A bundle from elsewhere that is whole by its own hashes: what ONNX Runtime would read or crash on is refused before it.

Run on the oldest onnxruntime that is allowed too (make test-oldest).
"""

import hashlib
import json
import shutil

import onnx
import pytest
from onnx import TensorProto, helper

from edgepeft.errors import BundleError, EdgepeftError
from edgepeft.runtime.audit import audit
from edgepeft.runtime.runtime import Runtime

SECRET = "what only this host's owner may read......"


def outside(location):
    """A tensor that lies in another file; 4 bytes a value."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", str(location)), ("offset", "0"), ("length", "40")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def of_a_function(graph, location):
    node = helper.make_node("Constant", [], ["y"])
    node.attribute.append(onnx.AttributeProto(name="value", ref_attr_name="a", type=onnx.AttributeProto.TENSOR))
    function = helper.make_function("own", "F", [], ["y"], [node], [helper.make_opsetid("", 20)])
    function.attribute_proto.append(helper.make_attribute("a", outside(location)))
    graph.functions.append(function)
    graph.opset_import.append(helper.make_opsetid("own", 1))
    graph.graph.node.append(helper.make_node("F", [], ["stolen"], domain="own"))


def named_twice(graph, location):
    tensor = next((t for t in graph.graph.initializer if t.external_data), None)
    if tensor is None:
        tensor = graph.graph.initializer.add()
        tensor.CopyFrom(outside("model.safetensors"))
    tensor.external_data.add(key="location", value=str(location))


def of_a_branch(graph, location):
    branch = helper.make_graph([], "branch", [], [helper.make_tensor_value_info("w", 1, [10])], [outside(location)])
    graph.graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    node = helper.make_node("If", ["always"], ["stolen"], then_branch=branch, else_branch=branch)
    graph.graph.node.append(node)


def initializer(graph, location):
    graph.graph.initializer.append(outside(location))


def of_a_constant(graph, location):
    graph.graph.node.append(helper.make_node("Constant", [], ["stolen"], value=outside(location)))


ATTACKS = [of_a_function, named_twice, of_a_branch, initializer, of_a_constant]
FILES = {
    "backbone.onnx": ("backbone", "sha256", "graph"),
    "tasks/mood.onnx": ("tasks", "mood", "sha256"),
    "tasks/mood.train.onnx": ("tasks", "mood", "train_sha256"),
}


def alter(bundle, name, change):
    """Change one graph, and make the manifest's hash of it right."""
    path = bundle / name
    # Where there is no training graph, the delta's stands for it: it is read like one, though never run.
    graph = onnx.load(path if path.exists() else bundle / "tasks/mood.onnx", load_external_data=False)
    change(graph)
    content = graph.SerializeToString()
    path.write_bytes(content)
    document = json.loads((bundle / "edgepeft.json").read_bytes())
    holder = document
    for key in FILES[name][:-1]:
        holder = holder[key]
    holder[FILES[name][-1]] = hashlib.sha256(content).hexdigest()
    (bundle / "edgepeft.json").write_text(json.dumps(document))


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", FILES)
def test_no_file_of_the_host_is_read_whatever_in_a_graph_names_it(bundle, tmp_path, name, attack, absolute):
    (tmp_path / "secret").write_text(SECRET)
    where = tmp_path / "secret" if absolute else "../secret"
    alter(bundle, name, lambda graph: attack(graph, where))
    problems = [finding.problem for finding in audit(bundle) if finding.problem]
    assert any("Do not use it" in problem for problem in problems)
    if "train" not in name:  # answering reads no training graph
        with Runtime(bundle, cache=False) as runtime, pytest.raises(BundleError, match="Do not use it"):
            runtime.predict("mood", ["w5"])


@pytest.mark.parametrize("name", FILES)
def test_an_address_in_memory_is_no_file(bundle, name):
    alter(bundle, name, lambda graph: initializer(graph, "*/_ORT_MEM_ADDR_/*"))
    assert any("_ORT_MEM_ADDR_" in finding.problem for finding in audit(bundle))


def test_a_few_bytes_that_ask_for_gigabytes_are_refused_before_they_are_allocated(bundle):
    def change(graph):
        graph.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT, dims=[1 << 30])

    alter(bundle, "tasks/mood.onnx", change)
    with Runtime(bundle, cache=False) as runtime, pytest.raises(BundleError, match=r"4294967296 bytes; 0 are there"):
        runtime.predict("mood", ["w5"])


def test_hard_links_are_read_and_verified_like_other_files(bundle, tmp_path):
    linked = tmp_path / "linked"
    shutil.copytree(bundle, linked, copy_function=lambda a, b: tmp_path.joinpath(b).hardlink_to(a))
    assert not any(finding.problem for finding in audit(linked))
    with Runtime(linked) as runtime:
        assert runtime.predict("mood", ["w5"])


@pytest.mark.parametrize("vocabulary", [{}, {"w5": 5}])
def test_a_tokenizer_that_contradicts_itself_is_an_error_of_the_bundle(bundle, vocabulary):
    """WordLevel without its unknown token: the library raises a bare Exception when a text needs it."""
    document = json.loads((bundle / "tokenizer.json").read_bytes())
    document["model"]["vocab"] = vocabulary
    content = json.dumps(document).encode()
    (bundle / "tokenizer.json").write_bytes(content)
    manifest = json.loads((bundle / "edgepeft.json").read_bytes())
    manifest["files"]["tokenizer.json"] = hashlib.sha256(content).hexdigest()
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    with Runtime(bundle, cache=False) as runtime, pytest.raises(EdgepeftError, match=r"tokenizer\.json"):
        runtime.predict("mood", ["an unknown word"])

"""A graph that wants to read a file of the machine is refused, wherever in the model it says so."""

import onnx
import pytest
from onnx import TensorProto, helper

from edgepeft.errors import BundleError
from edgepeft.graph.external import check_external, external_files


def tensor(location=None):
    found = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    if location is not None:
        found.data_location = TensorProto.EXTERNAL
        found.ClearField("float_data")
        found.external_data.add(key="location", value=location)
    return found


def in_initializer(t):
    return helper.make_model(helper.make_graph([], "g", [], [], [t]))


def in_constant(t):
    return helper.make_model(helper.make_graph([helper.make_node("Constant", [], ["w"], value=t)], "g", [], []))


def in_branch(t):
    branch = helper.make_graph([], "branch", [], [], [t])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return helper.make_model(helper.make_graph([node], "g", [], []))


def in_function(t):
    node = helper.make_node("Constant", [], ["w"], value=t)
    function = helper.make_function("d", "f", [], ["w"], [node], [helper.make_opsetid("", 20)])
    return helper.make_model(helper.make_graph([], "g", [], []), functions=[function])


def in_sparse(t):
    model = helper.make_model(helper.make_graph([], "g", [], []))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(t)
    return model


@pytest.mark.parametrize("place", [in_initializer, in_constant, in_branch, in_function, in_sparse])
@pytest.mark.parametrize("location", ["/etc/passwd", "../../secret", "other.bin", ""])
def test_a_tensor_in_another_file_is_refused_wherever_it_stands(place, location):
    model = place(tensor(location))
    assert external_files(model) == {location}
    with pytest.raises(BundleError, match="wants to read"):
        check_external(model, None, "x.onnx")
    with pytest.raises(BundleError, match="wants to read"):
        check_external(model, "model.safetensors", "x.onnx")


@pytest.mark.parametrize("place", [in_initializer, in_constant, in_branch, in_function, in_sparse])
def test_the_weights_file_and_inline_tensors_are_allowed(place):
    check_external(place(tensor("model.safetensors")), "model.safetensors", "x.onnx")
    check_external(place(tensor()), None, "x.onnx")


def test_a_delta_that_reads_a_file_is_refused_by_add_and_by_the_runtime(bundle, tmp_path):
    import hashlib
    import json
    import shutil

    from verbs import edgepeft

    bad = onnx.load(bundle / "tasks" / "mood.onnx")
    first = bad.graph.initializer[0]
    first.ClearField("raw_data")
    first.data_location = TensorProto.EXTERNAL
    first.external_data.add(key="location", value="../../../../etc/passwd")
    onnx.save(bad, tmp_path / "mood.onnx")
    shutil.copy(bundle / "tasks" / "mood.check.safetensors", tmp_path)
    done = edgepeft("add", bundle, tmp_path / "mood.onnx", "--force")
    assert (done.returncode, "etc/passwd" in done.stderr) == (1, True)
    # A whole bundle made by an attacker has right hashes.
    shutil.copy(tmp_path / "mood.onnx", bundle / "tasks" / "mood.onnx")
    manifest = json.loads((bundle / "edgepeft.json").read_text())
    manifest["tasks"]["mood"]["sha256"] = hashlib.sha256((tmp_path / "mood.onnx").read_bytes()).hexdigest()
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    done = edgepeft("run", bundle, "--task", "mood", "w5")
    assert (done.returncode, "etc/passwd" in done.stderr) == (1, True)

"""A bundle from elsewhere that is whole by its own hashes: what ONNX Runtime would read or crash on is refused before it.

Run on the oldest onnxruntime that is allowed too (make test-oldest).
"""

import hashlib
import json
import shutil

import pytest
from hostile import FILES, NAMING, SECRET, alter, initializer
from onnx import TensorProto

from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.deploy.verify import audit
from edgepeft.runtime.runtime import Runtime


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("attack", NAMING)
@pytest.mark.parametrize("name", FILES)
def test_no_file_of_the_host_is_read_whatever_in_a_graph_names_it(bundle, tmp_path, name, attack, absolute):
    (tmp_path / "secret").write_text(SECRET)
    where = tmp_path / "secret" if absolute else "../secret"
    alter(bundle, name, lambda graph: attack(graph, where))
    problems = [finding.problem for finding in audit(bundle) if finding.problem]
    assert any("Do not use it" in problem for problem in problems)
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

"""Tasks of one structure through one session; threads at once; a bundle that changes underneath; a thousand tasks."""

import gc
import hashlib
import json
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import onnx
import pytest
from cards import carded
from deltas import TEXTS, random_delta, saved
from method_examples import examples
from onnx import numpy_helper
from tolerance import require_alike

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.base import methods
from edgepeft.runtime import session_pool
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

SHARED = ["bitfit", "compacter", "dora", "houlsby", "lora", "spartan"]


@pytest.fixture(scope="module")
def siblings(tiny, tmp_path_factory):
    """For each method three tasks of one structure and other values, the last with more labels."""
    folder = tmp_path_factory.mktemp("siblings")
    backbone = open_backbone(str(tiny("bert")))
    labels = (("no", "yes"), ("no", "yes"), ("a", "b", "c"))
    paths = [
        saved(
            random_delta(
                backbone, name, f"{name}-{i}", labels[i], seed=i, settings=asdict(examples(methods()[name])[0])
            ),
            folder / f"{name}-{i}",
        )
        for name in (*SHARED, "full", "top-k")
        for i in range(3)
    ]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


@pytest.fixture
def opened(monkeypatch):
    """Counts the sessions on whole models."""
    found = []
    plain = session_pool.SessionPool._open
    monkeypatch.setattr(
        session_pool.SessionPool, "_open", lambda self, *of: found.append(plain(self, *of)) or found[-1]
    )
    return found


@pytest.mark.parametrize("method", SHARED)
def test_tasks_of_one_structure_share_a_session_and_keep_their_own_answers(siblings, opened, monkeypatch, method):
    tasks = [f"{method}-{i}" for i in range(3)]
    with Runtime(siblings, threads=1) as runtime:
        inputs = runtime.bundle.encoder().encode(TEXTS[:9], 40).inputs
        found = [runtime.logits(task, inputs) for task in tasks]
        again = [runtime.logits(task, inputs) for task in tasks]
        assert len({id(runtime.session(task).shared) for task in tasks}) == 1
    assert len(opened) == 2  # the first task's, which goes, and that of all three
    monkeypatch.setattr(session_pool, "make_inputs", lambda model, computed: None)
    with Runtime(siblings, threads=1, cache=False) as alone:
        for task, logits, later in zip(tasks, found, again, strict=True):
            require_alike(logits, alone.logits(task, inputs), siblings)
            require_alike(logits, later, siblings)  # the first was alone, and shares the session since
    assert np.abs(found[0] - found[1]).max() > 0.1


@pytest.mark.parametrize("method", ["full", "top-k"])
def test_tasks_with_matrices_of_their_own_have_a_session_each(siblings, opened, method):
    with Runtime(siblings, threads=1) as runtime:
        for i in range(3):
            runtime.session(f"{method}-{i}")
    assert len(opened) == 3


def test_threads_that_ask_at_once_get_the_answers_of_one_after_the_other(siblings):
    with Runtime(siblings, threads=1) as runtime:
        expected = {(task, i): runtime.predict(task, TEXTS[i : i + 3]) for task in runtime.tasks for i in (0, 9, 30)}
    with Runtime(siblings, threads=1) as runtime, ThreadPoolExecutor(8) as pool:
        jobs = {key: pool.submit(runtime.predict, key[0], TEXTS[key[1] : key[1] + 3]) for key in expected}
        for key, job in jobs.items():
            for found, alone in zip(job.result(), expected[key], strict=True):
                assert found.label == alone.label
                require_alike(found.logits, alone.logits, siblings)


def test_the_first_task_of_a_structure_moves_to_the_session_that_it_shares_and_its_own_is_let_go(siblings):
    first, second = f"{SHARED[0]}-0", f"{SHARED[0]}-1"
    with Runtime(siblings, threads=1) as runtime:
        alone = weakref.ref(runtime.session(first).shared)
        assert not runtime.session(first).feeds
        runtime.session(second)
        assert runtime.session(first).feeds and runtime.session(first).shared is runtime.session(second).shared
        gc.collect()
        assert alone() is None


def test_a_first_task_whose_file_is_gone_goes_on_answering_when_a_second_opens(siblings, tmp_path):
    first, second = f"{SHARED[0]}-0", f"{SHARED[0]}-1"
    folder = tmp_path / "bundle"
    shutil.copytree(siblings, folder)
    with Runtime(folder, threads=1) as runtime:
        before = runtime.predict(first, TEXTS[:5])
        (folder / "tasks" / f"{first}.onnx").unlink()
        runtime.predict(second, TEXTS[:5])
        assert runtime.predict(first, TEXTS[:5]) == before


def test_a_closed_runtime_says_so(exported):
    with Runtime(exported) as runtime:
        runtime.predict("mood", TEXTS[:1])
    with pytest.raises(UsageError, match="closed"):
        runtime.predict("mood", TEXTS[:1])
    runtime.close()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("other", ["tasks", "weights"])
def test_a_bundle_replaced_while_open_answers_as_before_or_not_at_all(siblings, exported, tmp_path, cache, other):
    folder = tmp_path / "bundle"
    shutil.copytree(exported, folder)
    with Runtime(folder, cache=cache) as runtime:
        before = runtime.predict("mood", TEXTS[:5])
        folder.rename(tmp_path / "old")
        shutil.copytree(siblings if other == "tasks" else exported, folder)
        if other == "weights":
            path, manifest = folder / "model.safetensors", folder / "edgepeft.json"
            old = hashlib.sha256(path.read_bytes()).hexdigest()
            path.write_bytes(path.read_bytes()[:-40] + bytes(40))
            manifest.write_text(manifest.read_text().replace(old, hashlib.sha256(path.read_bytes()).hexdigest()))
        assert runtime.predict("mood", TEXTS[:5]) == before
        with pytest.raises(BundleError, match="open the bundle again"):
            runtime.predict("pair", TEXTS[:5])


def test_a_thousand_tasks_in_one_bundle(siblings, tmp_path, opened):
    folder = tmp_path / "many"
    shutil.copytree(siblings, folder)
    manifest = json.loads((folder / "edgepeft.json").read_text())
    entry = manifest["tasks"]["bitfit-0"]
    graph = onnx.load(folder / "tasks" / "bitfit-0.onnx")
    bias = next(t for t in graph.graph.initializer if list(t.dims) == [2])
    start = numpy_helper.to_array(bias).copy()
    for i in range(1000):
        bias.CopyFrom(numpy_helper.from_array(start + np.float32(i), bias.name))
        content = carded(graph, f"t{i}")
        (folder / "tasks" / f"t{i}.onnx").write_bytes(content)
        manifest["tasks"][f"t{i}"] = {**entry, "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "edgepeft.json").write_text(json.dumps(manifest))
    with Runtime(folder, threads=1) as runtime:
        inputs = runtime.bundle.encoder().encode(TEXTS[:2], 40).inputs
        first = runtime.logits("t0", inputs)
        for i in range(0, 1000, 9):
            np.testing.assert_allclose(runtime.logits(f"t{i}", inputs) - first, i, atol=2e-3)
    assert len(opened) == 2

"""Rows of several tasks in one batch: each answers as it does alone, tasks of one structure in one run."""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from cards import carded
from deltas import TEXTS, random_delta, saved, small_settings
from once import made_once
from onnx import numpy_helper
from tolerance import require_alike

from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UnknownName, UsageError
from edgepeft.methods.base import methods
from edgepeft.runtime import mixed, session_pool
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

LABELS = [["no", "yes"], ["a", "b", "c"], None, list("pqrst"), ["no", "yes"]]
GROUPED = {"full", "fusion", "intrinsic-said", "top-k"}


def multiply(folder, n=5):
    """Each task becomes ``n`` of one structure, with values, labels and a longest text of their own."""
    source = np.random.default_rng(0)
    manifest = json.loads((folder / "edgepeft.json").read_text())
    for name, entry in list(manifest["tasks"].items()):
        graph = onnx.load(folder / "tasks" / f"{name}.onnx")
        for i in range(n):
            n_labels = len(LABELS[i] or ["number"])
            copy = onnx.ModelProto.FromString(graph.SerializeToString())
            for tensor in copy.graph.initializer:
                value = numpy_helper.to_array(tensor)
                if value.dtype == np.float32 and value.ndim:
                    if tensor.name.startswith("head/") and value.shape[0] == 2:
                        value = np.resize(value, (n_labels, *value.shape[1:]))
                    noise = 0.2 * value.std() * source.standard_normal(value.shape)
                    tensor.CopyFrom(numpy_helper.from_array((value + noise).astype(np.float32), tensor.name))
            next(o for o in copy.graph.output if o.name == "logits").type.tensor_type.shape.dim[1].dim_value = n_labels
            facts = {
                "labels": LABELS[i],
                "kind": "regression" if LABELS[i] is None else "classification",
                "max_length": 40 - 7 * i,
            }
            content = carded(copy, f"{name}-{i}", **facts)
            (folder / "tasks" / f"{name}-{i}.onnx").write_bytes(content)
            manifest["tasks"][f"{name}-{i}"] = entry | facts | {"sha256": hashlib.sha256(content).hexdigest()}
    (folder / "edgepeft.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def several(all_methods, tmp_path_factory):
    """Five tasks of each method, ``<method>-0`` to ``<method>-4``."""

    def make(folder):
        shutil.copytree(all_methods.parent, folder, dirs_exist_ok=True)  # with the deltas, of which the tolerance is
        multiply(folder / "bundle")

    return made_once(tmp_path_factory, "mixed", make) / "bundle"


@pytest.fixture
def runs(monkeypatch):
    """Counts the runs of sessions on whole models."""
    found = []

    class Counted:
        def __init__(self, session):
            self.session = session

        def __getattr__(self, name):
            if name in ("run", "run_with_ort_values"):
                found.append(name)
            return getattr(self.session, name)

    plain = session_pool.SessionPool._open
    monkeypatch.setattr(session_pool.SessionPool, "_open", lambda self, *of: Counted(plain(self, *of)))
    return found


def numbers(prediction):
    return [prediction.score, *prediction.scores.values()]


def check(several, runtime, tasks, texts):
    """The mixed answers are those of each row's task alone."""
    found = runtime.predict_mixed(tasks, texts)
    for task, text, answer in zip(tasks, texts, found, strict=True):
        alone = runtime.predict(task, [text])[0]
        assert (answer.task, answer.label, list(answer.scores)) == (task, alone.label, list(alone.scores))
        require_alike(numbers(answer), numbers(alone), several)
    return found


def rows(method, n, seed=0):
    return [f"{method}-{i}" for i in np.random.default_rng(seed).integers(0, 5, n)]


@pytest.mark.parametrize("method", sorted(methods()))
def test_each_row_answers_as_its_task_does_alone(several, runs, method):
    name = method.replace("+", "p")
    with Runtime(several, threads=1, cache=False) as runtime:
        for n in (1, 2, 13):
            check(several, runtime, rows(name, n), TEXTS[3 : 3 + n])
        runs.clear()
        found = runtime.predict_mixed([f"{name}-{i % 5}" for i in range(11)], [TEXTS[3]] * 11)
    assert len(runs) == (5 if method in GROUPED else 1)
    assert found[0].scores == found[5].scores
    assert found[0].scores != found[4].scores


def test_a_head_of_two_layers_mixes_too(tiny, tmp_path, runs):
    backbone = open_backbone(str(tiny("roberta")))
    path = saved(
        random_delta(backbone, "pfeiffer", "pfeiffer", settings=small_settings("pfeiffer")), tmp_path / "delta"
    )
    export_bundle(backbone, [path], tmp_path / "bundle", texts=TEXTS[:20])
    with Runtime(multiply(tmp_path / "bundle"), threads=1) as runtime:
        check(tmp_path / "bundle", runtime, rows("pfeiffer", 9), TEXTS[:9])
        runs.clear()
        runtime.predict_mixed([f"pfeiffer-{i}" for i in range(5)], TEXTS[:5])
    assert len(runs) == 1


def test_a_mean_mixes_where_it_is_the_backbones_and_not_where_it_leaves_a_prompt_out(tiny, tmp_path, runs):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    names = ("houlsby", "prompt-t")
    paths = [
        saved(random_delta(backbone, name, name, settings=small_settings(name)), tmp_path / name) for name in names
    ]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS[:20])
    with Runtime(multiply(tmp_path / "bundle"), threads=1) as runtime:
        for name, n_runs in (("houlsby", 1), ("prompt-t", 5)):
            check(tmp_path / "bundle", runtime, rows(name, 9), TEXTS[:9])
            runs.clear()
            runtime.predict_mixed([f"{name}-{i}" for i in range(5)], TEXTS[:5])
            assert len(runs) == n_runs


def test_rows_of_one_task_run_in_its_own_session(several, runs):
    with Runtime(several, threads=1) as runtime:
        found = runtime.predict_mixed(["lora-1"] * 4, TEXTS[:4])
        assert len(runs) == 1
        assert found == runtime.predict("lora-1", TEXTS[:4])


def test_a_long_batch_of_several_passes_keeps_its_order(several):
    with Runtime(several, threads=1) as runtime:
        check(several, runtime, rows("houlsby", 140), TEXTS + TEXTS[::-1])


def test_structures_and_bare_rows_in_one_batch_keep_their_order(several, runs):
    tasks = ["lora-0", None, "full-1", "pfeiffer-2", "lora-3", "pfeiffer-0", None, "top-k-1", "lora-0"]
    with Runtime(several, threads=1) as runtime:
        found = runtime.predict_mixed(tasks, TEXTS[: len(tasks)])
        assert len(runs) == 5
        for task, text, answer in zip(tasks, TEXTS, found, strict=False):
            if task is not None:
                require_alike(numbers(answer), numbers(runtime.predict(task, [text])[0]), several)


@pytest.mark.parametrize("pooling", [Pooling.FIRST, Pooling.MEAN])  # the third is of backbones with a decoder
def test_a_row_without_a_task_gets_the_backbones_embedding(several, pooling):
    with Runtime(several, threads=1) as runtime:
        found = runtime.predict_mixed([None, "lora-0", None], TEXTS[4:7], pooling=pooling)
        for text, answer in ((TEXTS[4], found[0]), (TEXTS[6], found[2])):
            hidden = runtime.last_hidden_state(runtime.bundle.encoder().encode([text], 60).inputs)[0]
            expected = hidden[0] if pooling is Pooling.FIRST else hidden.mean(0)
            require_alike(answer, expected, several)


def test_more_tasks_than_one_pass_takes_run_in_several(several, runs, monkeypatch):
    monkeypatch.setattr(mixed, "MAX_TASKS", 2)
    with Runtime(several, threads=1) as runtime:
        check(several, runtime, [f"bitfit-{i}" for i in range(5)], TEXTS[:5])
        runs.clear()
        runtime.predict_mixed([f"bitfit-{i}" for i in range(5)], TEXTS[:5])
    assert len(runs) == 3


def test_threads_that_ask_at_once_get_the_answers_of_one_after_the_other(several):
    batches = [(rows("spartan", n, seed=n), TEXTS[n : 2 * n]) for n in range(1, 13)]
    with Runtime(several, threads=1) as runtime:
        expected = [runtime.predict_mixed(*batch) for batch in batches]
    with Runtime(several, threads=1) as runtime, ThreadPoolExecutor(8) as pool:
        for found, alone in zip(pool.map(lambda batch: runtime.predict_mixed(*batch), batches), expected, strict=True):
            for one, other in zip(found, alone, strict=True):
                assert (one.task, one.label) == (other.task, other.label)
                require_alike(one.logits, other.logits, several)


def test_tasks_whose_files_were_replaced_meanwhile_answer_as_before(several, tmp_path):
    folder = shutil.copytree(several, tmp_path / "bundle")
    tasks = [f"lora-{i}" for i in range(5)]
    with Runtime(folder, threads=1) as runtime:
        for task in tasks:
            runtime.prepare(task)  # what answers alone is another session
        alone = [runtime.predict(task, [text])[0] for task, text in zip(tasks, TEXTS, strict=False)]
        (folder / "tasks" / "lora-0.onnx").write_bytes(b"another")
        found = runtime.predict_mixed(tasks, TEXTS[:5])
        for answer, before in zip(found, alone, strict=True):
            require_alike(numbers(answer), numbers(before), several)


def test_tasks_that_came_with_a_reload_mix_and_one_that_was_replaced_answers_by_its_new_values(several, tmp_path):
    folder = shutil.copytree(several, tmp_path / "bundle")
    manifest = json.loads((folder / "edgepeft.json").read_text())
    shown = {name: entry for name, entry in manifest["tasks"].items() if name in ("lora-0", "lora-1", "full-0")}
    (folder / "edgepeft.json").write_text(json.dumps(manifest | {"tasks": shown}))
    with Runtime(folder, threads=1) as runtime:
        check(several, runtime, ["lora-0", "lora-1"], TEXTS[:2])
        content = carded(onnx.load(folder / "tasks" / "lora-3.onnx"), "lora-0")
        other = manifest["tasks"]["lora-3"] | {"sha256": hashlib.sha256(content).hexdigest()}
        (folder / "tasks" / "lora-0.onnx").write_bytes(content)
        everything = manifest["tasks"] | {"lora-0": other}
        (folder / "edgepeft.json").write_text(json.dumps(manifest | {"tasks": everything}))
        assert {"lora-0", "lora-2", "pfeiffer-0", "pfeiffer-1"} <= set(runtime.reload())
        found = check(several, runtime, ["lora-2", "lora-0", "lora-3", "pfeiffer-0", "pfeiffer-1"], [TEXTS[5]] * 5)
    require_alike(numbers(found[1]), numbers(found[2]), several)  # lora-0 is a copy of it now


def test_an_unknown_task_is_refused_before_anything_runs(several, runs):
    with Runtime(several, threads=1) as runtime, pytest.raises(UnknownName, match="'lora-9'"):
        runtime.predict_mixed(["lora-1", "lora-9", "lora-2"], TEXTS[:3])
    assert not runs


def test_by_choice_only_the_rows_of_an_unknown_or_damaged_task_fail(several, tmp_path):
    folder = shutil.copytree(several, tmp_path / "bundle")
    (folder / "tasks" / "lora-3.onnx").write_bytes(b"damaged")
    tasks = ["lora-1", "lora-9", "lora-2", "lora-3", "lora-9"]
    with Runtime(folder, threads=1) as runtime:
        found = runtime.predict_mixed(tasks, TEXTS[:5], strict=False)
        assert [type(answer) for answer in (found[1], found[3], found[4])] == [UnknownName, BundleError, UnknownName]
        for i in (0, 2):
            require_alike(numbers(found[i]), numbers(runtime.predict(tasks[i], [TEXTS[i]])[0]), several)


def test_no_rows_give_no_answers_and_each_text_needs_a_task(several):
    with Runtime(several, threads=1) as runtime:
        assert runtime.predict_mixed([], []) == []
        with pytest.raises(UsageError, match="2 tasks for 1 text"):
            runtime.predict_mixed(["lora-1", "lora-2"], TEXTS[:1])

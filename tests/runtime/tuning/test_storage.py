"""Tuning beside what else a bundle may be: 8-bit weights, half-precision deltas, prompts, layers that tasks share."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from deltas import TEXTS
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.delta import new_delta
from edgepeft.errors import UsageError
from edgepeft.exporting.bundle import add_deltas, export_bundle
from edgepeft.methods.base import method_named
from edgepeft.runtime.audit import audit
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.tasks import roll_back
from edgepeft.runtime.tuning.options import TuneOptions
from edgepeft.runtime.tuning.subject import Files
from edgepeft.runtime.tuning.tune import tune

from .conftest import known


def quick(bundle, task, data, template=None, steps=40):
    options = TuneOptions(steps=steps, learning_rate=1e-2, head_learning_rate=5e-2)
    return tune(bundle, task, Files(data), options, template=template, threads=1)


def sound(bundle):
    return not any(finding.problem for finding in audit(bundle))


@pytest.fixture(scope="session")
def eight(trainable, tmp_path_factory):
    """The same two tasks over 8-bit weights; not to be written to."""
    folder = tmp_path_factory.mktemp("eight") / "bundle"
    backbone = open_backbone(str(trainable.parent / "bert"))
    export_bundle(backbone, [trainable.parent / "score"], folder, texts=TEXTS, weights="int8")
    return folder


@pytest.mark.parametrize("more", [{"trainable": True}, {"templates": [method_named("lora").from_settings({})]}])
def test_8_bit_weights_are_not_tuned_over_and_leave_nothing_behind(trainable, tmp_path, more):
    backbone = open_backbone(str(trainable.parent / "bert"))
    with pytest.raises(UsageError, match=r"--trainable and --template need .* float32 .*--weights fp32"):
        export_bundle(backbone, [trainable.parent / "mood"], tmp_path / "out", texts=TEXTS, weights="int8", **more)
    assert not any(tmp_path.iterdir())


def test_half_precision_tasks_are_not_for_tuning(bundle, trainable, tmp_path):
    done = edgepeft(
        *("export", "--backbone", trainable.parent / "bert", "--delta", trainable.parent / "mood"),
        *("--out", tmp_path / "out", "--trainable", "--delta-weights", "fp16"),
    )
    assert done.returncode == 2 and "Leave --delta-weights fp16 or --trainable out" in done.stderr
    with pytest.raises(UsageError, match="Leave --delta-weights fp16 or --trainable out"):
        add_deltas(bundle, [trainable.parent / "mood"], texts=TEXTS, replace=True, trainable=True, delta_weights="fp16")


def test_a_half_precision_task_is_not_tuned_and_comes_back_after_a_replacement(bundle, trainable, moods):
    mood = trainable.parent / "mood"
    add_deltas(bundle, [mood], texts=TEXTS, replace=True, delta_weights="fp16")
    with pytest.raises(UsageError, match=r"task mood is stored in half precision.*edgepeft add --force"):
        quick(bundle, "mood", moods)
    add_deltas(bundle, [mood], texts=TEXTS, replace=True, trainable=True)
    quick(bundle, "mood", moods)
    assert Bundle(bundle).entry("mood").weights_dtype == "fp32" and sound(bundle)
    add_deltas(bundle, [mood], texts=TEXTS, replace=True, delta_weights="fp16")
    roll_back(bundle, "mood")
    roll_back(bundle, "mood")
    assert Bundle(bundle).entry("mood").weights_dtype == "fp16" and sound(bundle)


def test_a_task_runs_over_8_bit_weights_and_is_not_tuned_there(bundle, eight, moods, tmp_path):
    other = shutil.copytree(eight, tmp_path / "other")
    assert edgepeft("add", other, bundle / "tasks" / "score.onnx", "--force").returncode == 0
    assert sound(other)
    done = edgepeft("tune", other, "--task", "score", "--data", moods)
    assert done.returncode == 2 and "holds its backbone in 8 bits" in done.stderr
    done = edgepeft("add", other, bundle / "tasks" / "score.onnx", "--trainable", "--force")
    assert done.returncode == 2 and "Leave --trainable out" in done.stderr


@pytest.mark.parametrize("method", ["prompt-t", "prompt-r"])
def test_prompts_are_tuned_as_tasks_and_from_templates(trainable, moods, tmp_path, method):
    backbone = open_backbone(str(trainable.parent / "bert"))
    prompt = method_named(method).from_settings({"length": "4"})
    torch.manual_seed(0)
    new_delta(backbone, prompt, "mood", ("bad", "good"), max_length=40).save(tmp_path / "mood")
    folder = tmp_path / "bundle"
    export_bundle(backbone, [tmp_path / "mood"], folder, texts=TEXTS, trainable=True, templates=[prompt])
    for task, template in (("mood", None), ("mine", method)):
        result = quick(folder, task, moods, template, steps=60)
        losses = [entry["loss"] for entry in result.tuned.history]
        assert result.tuned.improved and min(losses) < 0.8 * losses[0]
        assert Bundle(folder).entry(task).prompt_length == 4
    assert sound(folder)


def test_tasks_that_share_layers_answer_anew_after_a_reload(bundle, trainable, moods, tmp_path):
    """A top-layer task beside one of the whole model: what was shared before may not be after."""
    backbone = open_backbone(str(trainable.parent / "bert"))
    top = method_named("top-k").from_settings({"layers": "1"})
    for number, task in enumerate(("one", "two")):
        torch.manual_seed(number)
        new_delta(backbone, top, task, ("bad", "good"), max_length=40).save(tmp_path / task)
    add_deltas(bundle, [tmp_path / "one", tmp_path / "two"], texts=TEXTS, trainable=True)
    assert Bundle(bundle).entry("one").shared_layers > 0
    texts = [Text(known(json.loads(line)["sentence1"])) for line in moods.read_text().splitlines()[:7]]
    runtime = Runtime(bundle, threads=1, cache=False)
    before = runtime.predict_all(["one", "two"], texts)
    quick(bundle, "one", moods)
    assert runtime.predict_all(["one", "two"], texts) == before
    assert runtime.reload() == ("one",)
    after = runtime.predict_all(["one", "two"], texts)
    fresh = Runtime(bundle, threads=1, cache=False)
    assert after["two"] == before["two"]
    for task in ("one", "two"):
        alone = fresh.predict(task, texts)
        for found, expected in zip(after[task], alone, strict=True):
            np.testing.assert_allclose(list(found.scores.values()), list(expected.scores.values()), atol=1e-5)
    assert after["one"] != before["one"]
    assert runtime.reload() == ()


def test_a_folder_that_now_holds_another_backbone_is_not_reloaded(bundle, tiny):
    runtime = Runtime(bundle, threads=1, cache=False)
    export_bundle(open_backbone(str(tiny("distilbert"))), [], bundle, texts=TEXTS, force=True)
    with pytest.raises(UsageError, match="another backbone; open the bundle again"):
        runtime.reload()

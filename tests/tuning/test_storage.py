"""Tuning beside what else a bundle may be: 8-bit weights, half-precision deltas, prompts, layers that tasks share."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from deltas import TEXTS
from tuned import tune_task
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import UsageError
from edgepeft.deploy.install import roll_back
from edgepeft.deploy.verify import audit, pack_check
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import add_deltas, export_bundle
from edgepeft.tuning.target import Files, from_task, from_template
from edgepeft.tuning.tune import TuningRun

from .conftest import known


def quick(bundle, task, data, template=None, steps=40):
    options = TuneSettings(steps=steps, learning_rate=1e-2, head_learning_rate=5e-2)
    return tune_task(bundle, task, Files(data), options, template=template, threads=1)


def sound(bundle):
    return not any(finding.problem for finding in audit(bundle))


@pytest.fixture(scope="session")
def eight(trainable, tmp_path_factory):
    """A task, and a template, over 8-bit weights; not to be written to."""
    folder = tmp_path_factory.mktemp("eight") / "bundle"
    backbone, lora = open_backbone(str(trainable.parent / "bert")), method_named("lora").from_settings({})
    options = {"texts": TEXTS, "templates": [lora], "weights": "int8"}
    export_bundle(backbone, [trainable.parent / "score"], folder, **options)
    return folder


def in_half(bundle, delta):
    """The task in half precision."""
    add_deltas(bundle, [delta], texts=TEXTS, replace=True, delta_weights="fp16")
    entry = Bundle(bundle).entry("mood")
    assert entry.weights_dtype == "fp16"
    return entry


def values_of(bundle):
    """What the task's graph stores, by initializer."""
    stored = Bundle(bundle).delta_graph("mood").graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in stored}


def test_a_half_precision_task_is_trained_in_float32_and_comes_back_in_half_precision(bundle, trainable, moods):
    before, first = in_half(bundle, trainable.parent / "mood"), values_of(bundle)
    result = quick(bundle, "mood", moods)
    entry, after = Bundle(bundle).entry("mood"), values_of(bundle)
    assert result.improved and result.score >= 0.8
    assert entry.weights_dtype == "fp16" and sound(bundle)
    kinds = {name: values.dtype for name, values in after.items()}
    assert kinds == {name: values.dtype for name, values in first.items()} and np.float16 in kinds.values()
    assert entry.n_bytes == pytest.approx(before.n_bytes, rel=0.3)  # the card grows: figures, their intervals
    assert sum(not np.array_equal(values, after[name]) for name, values in first.items()) == len(first)
    # What is said of it is said of what is stored: a parity that half precision's rounding would break.
    assert entry.verification.max_abs_difference < 1e-4
    for name, tensor in result.tensors.items():
        stored = after.get(f"{name}:fp16", after.get(name))
        np.testing.assert_array_equal(stored.astype(np.float32), tensor)
    roll_back(bundle, "mood")
    assert Bundle(bundle).entry("mood").sha256 == before.sha256 and sound(bundle)


def test_steps_that_half_precision_would_swallow_add_up(bundle, trainable, moods, tmp_path):
    in_half(bundle, trainable.parent / "mood")
    opened, options = Bundle(bundle), TuneSettings(steps=64, learning_rate=1e-6, head_learning_rate=1e-6, warmup=0.0)
    run = TuningRun(opened, from_task(opened, "mood", Files(moods), options), options, tmp_path / "work", threads=1)
    name = max(run.target.half, key=lambda name: run.engine.trained[name].size)
    start = run.engine.trained[name].copy()
    run.loop.update([0, 1, 2])
    moved = run.engine.trained[name] - start
    large = (np.abs(start) > 0.01) & (moved != 0)  # float16's steps there are 8e-6 and more: each is 1e-6
    assert large.any() and np.array_equal(run.engine.tensors()[name][large], start[large])
    before = run.loop.score("eval").loss
    for _ in range(63):
        run.loop.update([0, 1, 2])
    found = run.engine.tensors()[name]
    assert not np.array_equal(found[large], start[large])
    np.testing.assert_array_equal(found, run.engine.trained[name].astype(np.float16).astype(np.float32))
    after = run.loop.score("eval").loss
    run.engine.trained = {n: run.engine.tensors()[n] for n in run.engine.trained}
    assert before != after == run.loop.score("eval").loss  # of what is stored


def test_a_value_beyond_half_precision_is_refused_by_name(bundle, trainable, moods, tmp_path):
    in_half(bundle, trainable.parent / "mood")
    opened, options = Bundle(bundle), TuneSettings(steps=1)
    run = TuningRun(opened, from_task(opened, "mood", Files(moods), options), options, tmp_path / "work", threads=1)
    name = next(iter(run.target.half))
    run.engine.trained[name][0, 0] = 7e4
    with pytest.raises(UsageError, match=rf"{name} reaches 7e\+04; half precision ends at 65504"):
        run.engine.tensors()


@pytest.mark.parametrize("backward", ["int8", "fp32"])
def test_tasks_are_tuned_over_8_bit_weights(bundle, eight, moods, tmp_path, backward):
    """One that came as it was exported, and one from a template; what answers is what was scored."""
    other = shutil.copytree(eight, tmp_path / "other")
    assert edgepeft("add", other, bundle / "tasks" / "mood.onnx").returncode == 0
    for task, more in (("mood", ()), ("mine", ("--template", "lora"))):
        rates = ("--lr", "1e-2", "--head-lr", "5e-2", "--steps", "40", "--backward", backward, *more)
        done = edgepeft("tune", other, "--task", task, "--data", moods, *rates, "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        losses = [entry["loss"] for entry in said["history"]]
        assert said["replaced"] and min(losses) < 0.8 * losses[0] and said["metrics"]["test"] >= 0.8
        assert said["training"]["backward"] == backward
    assert sound(other)


def test_rows_of_the_check_that_8_bit_weights_turn_are_stated_and_undo_no_run(eight, moods, tmp_path, monkeypatch):
    def turned(inputs, logits):
        return pack_check(inputs, np.concatenate([-logits[:4], logits[4:]]))

    monkeypatch.setattr("edgepeft.tuning.engine.pack_check", turned)
    bundle = shutil.copytree(eight, tmp_path / "bundle")
    result = quick(bundle, "mine", moods, "lora")
    stated = Bundle(bundle).entry("mine").verification
    assert result.improved and stated.changed_tolerance >= 1 - stated.agreement >= 4 / 64
    assert sound(bundle)


@pytest.mark.parametrize("backward", ["int8", "fp32"])
def test_gradients_pass_8_bit_weights_as_was_asked(eight, moods, tmp_path, backward):
    opened, options = Bundle(eight), TuneSettings(steps=1, backward=backward)
    target = from_template(opened, "mine", "lora", Files(moods), options)
    graph = TuningRun(opened, target, options, tmp_path / "work", threads=1).layout.training.graph
    back = {node.op_type for node in graph.node if node.name.startswith("back/")}
    assert ("MatMulInteger" in back) == (backward == "int8")


def test_an_unknown_way_back_is_refused():
    with pytest.raises(UsageError, match="backward must be 'int8' or 'fp32', found 'int4'"):
        TuneSettings(backward="int4")


@pytest.mark.parametrize("method", ["prompt-t", "prompt-r"])
def test_prompts_are_tuned_as_tasks_and_from_templates(trainable, moods, tmp_path, method):
    backbone = open_backbone(str(trainable.parent / "bert"))
    prompt = method_named(method).from_settings({"length": "4"})
    torch.manual_seed(0)
    new_delta(backbone, prompt, "mood", ("bad", "good"), max_length=40).save(tmp_path / "mood")
    folder = tmp_path / "bundle"
    export_bundle(backbone, [tmp_path / "mood"], folder, texts=TEXTS, templates=[prompt])
    for task, template in (("mood", None), ("mine", method)):
        result = quick(folder, task, moods, template, steps=60)
        losses = [entry["loss"] for entry in result.history]
        assert result.improved and min(losses) < 0.8 * losses[0]
        assert Bundle(folder).entry(task).prompt_length == 4
    assert sound(folder)


def test_tasks_that_share_layers_answer_anew_after_a_reload(bundle, trainable, moods, tmp_path):
    """A top-layer task beside one of the whole model: what was shared before may not be after."""
    backbone = open_backbone(str(trainable.parent / "bert"))
    top = method_named("top-k").from_settings({"layers": "1"})
    for number, task in enumerate(("one", "two")):
        torch.manual_seed(number)
        new_delta(backbone, top, task, ("bad", "good"), max_length=40).save(tmp_path / task)
    add_deltas(bundle, [tmp_path / "one", tmp_path / "two"], texts=TEXTS)
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


def test_another_tokenizer_is_not_read_past(bundle):
    runtime = Runtime(bundle, threads=1, cache=False)
    (tokenizer,) = bundle.glob("tokenizer.json")
    tokenizer.write_text(tokenizer.read_text().replace('"w7"', '"other"'))
    manifest = Manifest.read(bundle)
    files = {**manifest.files, tokenizer.name: hashlib.sha256(tokenizer.read_bytes()).hexdigest()}
    manifest.model_copy(update={"files": files}).write(bundle)
    with pytest.raises(UsageError, match="another tokenizer"):
        runtime.reload()


def test_what_was_open_answers_after_a_reload_where_the_folder_is_gone(bundle):
    runtime = Runtime(bundle, threads=1, cache=False)
    before = runtime.predict("mood", ["w7 w8", "w9"])
    assert runtime.reload() == ()
    bundle.rename(bundle.with_name("elsewhere"))
    assert runtime.predict("mood", ["w7 w8", "w9"]) == before

"""Tuning as a user has it: what it learns, what it leaves behind, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from training_loops import steps_beside_pytorchs
from tuned import tune_task
from typer.testing import CliRunner
from verbs import edgepeft, process

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.cli._main import app
from edgepeft.common.errors import DataError, EdgepeftError, UnknownName, UsageError
from edgepeft.common.resources import sha256_of
from edgepeft.data.rows import read_rows
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.deploy import install as tasks
from edgepeft.deploy.verify import audit
from edgepeft.graph.gradient.training import DROPPED
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun, tune

from .conftest import known, write_moods

QUICK = {"steps": 40, "learning_rate": 1e-2, "head_learning_rate": 5e-2}


def quick(bundle, task, data, *, template=None, resume=False, force=False, stop=lambda: False, **more):
    options = TuneSettings(**{**QUICK, **more})
    return tune_task(
        bundle, task, Files(data), options, template=template, resume=resume, force=force, threads=1, stop=stop
    )


def sha(bundle, task):
    return Bundle(bundle).entry(task).sha256


def sound(bundle):
    return not any(finding.problem for finding in audit(bundle))


def test_the_losses_of_twenty_steps_are_pytorchs_on_the_same_batches(bundle, moods, trainable, tmp_path):
    options = TuneSettings(
        steps=40, dropout=False, weight_decay=0.01, learning_rate=3e-3, head_learning_rate=1e-2, seed=3
    )
    opened = Bundle(bundle)
    run = TuningRun(opened, from_task(opened, "mood", Files(moods), options), options, tmp_path / "work", threads=1)
    backbone = open_backbone(str(bundle))
    delta = Delta.load(trainable.parent / "mood", backbone)
    beside = steps_beside_pytorchs(run.loop, delta, backbone, 20, rates=(3e-3, 1e-2), warm=4, decay=0.01)
    for number, loss in enumerate(beside):
        assert run.loop.loss == pytest.approx(loss, abs=1e-5), f"step {number + 1}"
    for name, tensor in delta.tensors().items():
        np.testing.assert_allclose(run.engine.trained[name], tensor.detach().numpy(), atol=1e-4)


def as_older_versions_wrote_it(bundle):
    """With the files of PyTorch's trace that versions before this one tuned by; what they hold is not read any more."""
    manifest, found = Bundle(bundle).manifest, {}
    for kind, name in (("tasks", "mood"), ("templates", "lora")):
        (bundle / kind / f"{name}.train.onnx").write_bytes(b"a graph")
        entry = getattr(manifest, kind)[name]
        own = entry.model_copy(update={"train_sha256": sha256_of(bundle / kind / f"{name}.train.onnx")})
        found[kind] = {**getattr(manifest, kind), name: own}
    manifest.model_copy(update=found).write(bundle)
    for delta in (bundle / "tasks" / "mood.onnx", bundle / "tasks" / "score.onnx"):
        model = onnx.load(delta)
        kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != DROPPED}
        assert len(kept) < len(model.metadata_props)
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, kept)
        onnx.save(model, delta)
        entry = Bundle(bundle).entry(delta.stem).model_copy(update={"sha256": sha256_of(delta)})
        manifest = Bundle(bundle).manifest
        manifest.model_copy(update={"tasks": {**manifest.tasks, delta.stem: entry}}).write(bundle)


def test_a_bundle_of_older_versions_is_tuned_and_goes_back(bundle, moods, tmp_path):
    new = Path(shutil.copytree(bundle, tmp_path / "new"))
    as_older_versions_wrote_it(bundle)
    first = sha(bundle, "mood")
    old, now = (quick(folder, "mood", moods, steps=5) for folder in (bundle, new))
    assert old.history == now.history
    assert not (bundle / "tasks" / "mood.train.onnx").exists()
    tasks.roll_back(bundle, "mood")
    assert sha(bundle, "mood") == first and (bundle / "tasks" / "mood.train.onnx").read_bytes() == b"a graph"
    quick(bundle, "mine", moods, template="lora", steps=5)
    assert sound(bundle)


def test_verify_finds_damaged_files_of_older_versions(bundle):
    as_older_versions_wrote_it(bundle)
    assert sound(bundle)
    for file in ("tasks/mood.train.onnx", "templates/lora.train.onnx"):
        with (bundle / file).open("ab") as damaged:
            damaged.write(b"x")
    found = {finding.subject: finding.problem for finding in audit(bundle)}
    assert "mood.train.onnx is not the file" in found["mood"]
    assert "lora.train.onnx is not the file" in found["template lora"]
    assert not found["backbone"] and not found["score"]


def test_a_tuned_task_answers_at_once_is_verified_and_a_running_runtime_reloads_it(bundle, moods):
    runtime, text = Runtime(bundle, threads=1), [Text(known("the soup was grim cold bad dull"))]
    before = runtime.predict("mood", text)[0]
    result = quick(bundle, "mood", moods)
    assert result.metrics["test"] >= 0.8
    entry = Bundle(bundle).entry("mood")
    assert entry.metrics == result.metrics and entry.training["steps"] == 40
    assert entry.verification.reference == "training graph"
    assert entry.verification.max_abs_difference < 1e-4
    assert sound(bundle)
    assert runtime.predict("mood", text)[0] == before
    assert runtime.reload() == ("mood",)
    after = runtime.predict("mood", text)[0]
    assert after != before
    rows = list(read_rows(moods, labels=True))
    answers = runtime.predict("mood", [Text(row.sentence1) for row in rows])
    assert np.mean([answer.label == row.label for answer, row in zip(answers, rows, strict=True)]) >= 0.8
    assert not (bundle / ".tune").exists()


def test_verify_steps_to_the_end_of_its_bar_and_leaves_each_step_before_the_next(bundle, monkeypatch):
    log = []

    @contextlib.contextmanager
    def stages(total):
        @contextlib.contextmanager
        def stage(name):
            log.append(f"enter {name}")
            yield
            log.append(f"leave {name}")

        yield stage
        log.append(total)

    monkeypatch.setattr("edgepeft.cli.verify.stages", stages)
    CliRunner().invoke(app, ["verify", str(bundle)], catch_exceptions=False)
    subjects = ["backbone", "mood", "score", "template lora"]
    assert log == [*(f"{way} {subject}" for subject in subjects for way in ("enter", "leave")), len(subjects)]


def test_the_kind_of_a_new_task_from_a_template_is_told_by_its_rows(bundle, tmp_path):
    rows = [{"text": f"w{5 + i % 9} w{6 + i % 5}", "labels": ["a", "b"][: i % 3]} for i in range(60)]
    (data := tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = {"bundle": bundle, "data": data, "template": "lora", "steps": 1, "threads": 1}
    with pytest.warns(UserWarning, match="a text and the list labels; --kind labels is taken"):
        tune(task="lists", **how)
    assert Bundle(bundle).entry("lists").task_kind.name == "labels"
    data.write_text("".join(json.dumps({"words": ["w5", "w6"], "tags": ["B-X", "O"]}) + "\n" for _ in rows))
    with pytest.raises(UsageError, match="template lora makes no tokens task; train one with"):
        tune(task="words", **how)


def test_a_new_task_from_a_template_has_the_labels_of_its_data(bundle, tmp_path):
    data = write_moods(tmp_path / "three.jsonl", 80, label=lambda mood, n: mood if n > 2 else "some", pairs=True)
    quick(bundle, "mine", data, template="lora")
    entry = Bundle(bundle).entry("mine")
    assert (entry.labels, entry.pairs, entry.training["template"]) == (("bad", "good", "some"), True, "lora")
    assert "before" not in entry.metrics
    assert Runtime(bundle).predict("mine", [Text("w5", "w6")])[0].scores.keys() == {"bad", "good", "some"}
    assert sound(bundle)
    quick(bundle, "yours", data, template="lora", seed=1)
    assert sha(bundle, "yours") != sha(bundle, "mine")
    with pytest.raises(UsageError, match="has a task 'mine' already"):
        quick(bundle, "mine", data, template="lora")


def test_a_regression_is_tuned_on_numbers(bundle, tmp_path):
    data = write_moods(
        tmp_path / "scores.jsonl", 80, label=lambda mood, telling: telling if mood == "good" else -telling
    )
    result = quick(bundle, "score", data, steps=80)
    assert result.metrics["metric"] == "pearson_spearman"
    assert result.metrics["test"] > 0.7
    assert sound(bundle)


def test_the_previous_version_comes_back_and_goes_again(bundle, moods):
    first = sha(bundle, "mood")
    quick(bundle, "mood", moods)
    second = sha(bundle, "mood")
    assert second != first
    done = edgepeft("rollback", bundle, "--task", "mood")
    assert done.returncode == 0 and sha(bundle, "mood") == first and sound(bundle)
    tasks.roll_back(bundle, "mood")
    assert sha(bundle, "mood") == second and sound(bundle)
    tasks.remove_task(bundle, "mood")
    assert not list(bundle.glob("tasks/**/mood*"))
    with pytest.raises(UsageError, match="no previous version"):
        tasks.roll_back(bundle, "score")


@pytest.mark.parametrize("cut", ["before the manifest", "after the manifest"])
def test_a_replacement_that_is_cut_off_leaves_one_whole_version(bundle, moods, monkeypatch, cut):
    first = sha(bundle, "mood")

    def die(*_, **__):
        raise RuntimeError("power loss")

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_write" if cut == "before the manifest" else "settle", die)
        with pytest.raises(RuntimeError):
            quick(bundle, "mood", moods)
    assert (sha(bundle, "mood") == first) == (cut == "before the manifest")
    assert sound(bundle)
    quick(bundle, "mood", moods, resume=True)
    assert sha(bundle, "mood") != first and sound(bundle)
    tasks.roll_back(bundle, "mood")
    assert sha(bundle, "mood") == first and sound(bundle)


KILLED = """
import os, signal, sys
from edgepeft.options.verbs import TuneOptions
from edgepeft.tuning.tune import tune_task

def watch(progress):
    if progress.phase == "train" and progress.done == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

tune_task(TuneOptions(bundle=sys.argv[1], task=sys.argv[2], data=sys.argv[3], template=sys.argv[5] or None, steps=40, lr=1e-2,
     head_lr=5e-2, save_every=3, threads=1, resume=sys.argv[6] == "resume"), watch=watch)
"""


@pytest.mark.parametrize("template", ["", "lora"])
def test_a_run_that_is_killed_twice_ends_with_the_weights_of_one_that_was_not(bundle, moods, tmp_path, template):
    task, other = "mine" if template else "mood", Path(shutil.copytree(bundle, tmp_path / "other"))
    for step, resume in ((8, "new"), (31, "resume")):
        arguments = [str(bundle), task, str(moods), str(step), template, resume]
        done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    if not template:
        assert sha(bundle, task) == sha(other, task), "the task is untouched until the end"
    with pytest.raises(UsageError, match=r"interrupted.*--resume.*--force"):
        quick(bundle, task, moods, template=template or None, save_every=3)
    with pytest.raises(UsageError, match=r"learning_rate.*--resume.*--force"):
        quick(bundle, task, moods, template=template or None, save_every=3, learning_rate=1.0, resume=True)
    quick(bundle, task, moods, template=template or None, save_every=3, resume=True)
    quick(other, task, moods, template=template or None, save_every=3)
    assert sha(bundle, task) == sha(other, task)


def test_the_score_before_is_that_of_the_task_that_was_there_on_the_same_rows(bundle, moods, tmp_path):
    """Told by the command, its JSON, the card in the bundle and the bundle's page; counted here with the runtime."""
    test = write_moods(tmp_path / "test.jsonl", 50, seed=7)
    rows = list(read_rows(test, labels=True))

    def right():
        answers = Runtime(bundle, threads=1).predict("mood", [Text(row.sentence1) for row in rows])
        return sum(answer.label == row.label for answer, row in zip(answers, rows, strict=True)) / len(rows)

    asked = ["--task", "mood", "--data", moods, "--test", test, "--lr", 1e-2, "--head-lr", 5e-2, "--threads", 1]
    before = right()
    document = json.loads(edgepeft("tune", bundle, *asked, "--steps", 20, "--json").stdout)
    metrics = document["metrics"]
    assert document["replaced"] and metrics["before"] == before and metrics["test"] == right() > before
    assert Bundle(bundle).entry("mood").metrics == metrics
    assert f"accuracy {metrics['test']:.3f} (before {before:.3f}, majority" in (bundle / "README.md").read_text()
    shown = edgepeft("tune", bundle, *asked, "--steps", 2)
    assert f"(before {metrics['test']:.3f}, majority" in shown.stdout, shown.stderr


def test_where_no_step_is_better_the_task_stays_as_it_was(bundle, moods):
    quick(bundle, "mood", moods)
    before = sha(bundle, "mood")
    result = quick(bundle, "mood", moods, learning_rate=1e-9, head_learning_rate=1e-9, steps=3)
    assert result.entry is None or result.improved
    assert result.improved or sha(bundle, "mood") == before


def test_patience_ends_a_run_early(bundle, moods):
    result = quick(bundle, "mood", moods, steps=400, patience=2)
    assert result.training["steps"] < 400
    later = [entry for entry in result.history if entry["step"] > result.training["best_step"]]
    assert len(later) == 2


def test_a_diverging_run_names_the_step_suggests_a_rate_and_leaves_the_task_alone(bundle, moods):
    before = sha(bundle, "mood")
    with pytest.raises(EdgepeftError, match=r"in step \d+.*as it was.*--lr 0.0009 --head-lr 0.02"):
        quick(bundle, "mood", moods, learning_rate=1e30, head_learning_rate=1e30)
    assert sha(bundle, "mood") == before and sound(bundle)


def test_what_cannot_be_tuned_is_refused_in_words(bundle, moods, tmp_path):
    rows = [json.loads(line) for line in moods.read_text().splitlines()]

    def file(name, changed):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in changed))
        return tmp_path / name

    awful = file("awful.jsonl", [*rows, {"sentence1": "w5", "label": "awful"}])
    with pytest.raises(DataError, match=r"awful.jsonl:61: .*no label 'awful'; it has bad, good"):
        quick(bundle, "mood", awful)
    alike = file("alike.jsonl", [row | {"label": "good"} for row in rows])
    for task, template in (("mood", None), ("mine", "lora")):
        with pytest.raises(DataError, match="every label is 'good'"):
            quick(bundle, task, alike, template=template)
    with pytest.raises(DataError, match="no label has a row more"):
        quick(bundle, "mood", file("three.jsonl", rows[:3]))
    with pytest.raises(UsageError, match=r"--batch-size 64 is more than the 48 rows"):
        quick(bundle, "mood", moods, batch_size=64)
    with pytest.raises(DataError, match="reads single texts"):
        quick(bundle, "mood", file("pairs.jsonl", [row | {"sentence2": "w6"} for row in rows]))
    with pytest.raises(DataError, match="finite number"):
        quick(bundle, "score", moods)
    with pytest.raises(UnknownName, match=r"'lroa'.*lora"):
        quick(bundle, "mine", moods, template="lroa")
    with pytest.raises(UnknownName, match=r"'mod'.*mood"):
        quick(bundle, "mod", moods)
    assert not (bundle / ".tune").exists() and sound(bundle)
    with pytest.raises(UsageError, match="is not a bundle"):
        quick(tmp_path / "nowhere", "mood", moods)
    assert not (tmp_path / "nowhere").exists()


def test_a_second_run_on_a_task_is_refused_and_one_on_another_is_not(bundle, moods, tmp_path):
    with claim(bundle, "mood"):
        done = process("tune", bundle, "--task", "mood", "--data", moods, "--steps", 1)
        assert done.returncode == 2 and "is being tuned by another process" in done.stderr
        data = write_moods(tmp_path / "scores.jsonl", label=lambda _, telling: telling)
        assert edgepeft("tune", bundle, "--task", "score", "--data", data, "--steps", 1).returncode == 0


def test_a_bundle_that_cannot_be_written_is_told_apart(bundle, moods, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(EdgepeftError, match=r"cannot be written \(Read-only file system\).*Copy the bundle"):
        quick(bundle, "mood", moods)


def test_the_command_prints_one_document_and_loads_no_torch(bundle, moods):
    program = (
        "import sys; sys.argv = ['edgepeft', *sys.argv[1:]]\n"
        "from edgepeft.cli._main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'transformers', 'sklearn', 'scipy', 'onnx_ir'} & set(sys.modules)\n"
    )
    arguments = ["tune", str(bundle), "--task", "mood", "--data", str(moods), "--steps", "3", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["task"], document["training"]["steps"]) == ("mood", 3)
    assert document["metrics"]["n_train"] + document["metrics"]["n_eval"] + document["metrics"]["n_test"] == 60


def test_an_exported_task_is_tuned_in_another_bundle(bundle, moods, tmp_path):
    other = Path(shutil.copytree(bundle, tmp_path / "other"))
    tasks.remove_task(other, "mood")
    assert edgepeft("add", other, bundle / "tasks" / "mood.onnx").returncode == 0
    quick(other, "mood", moods, steps=2)
    assert sound(other)

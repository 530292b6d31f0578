"""What a user reads of a bundle or a delta is what its manifest, its files and its training say."""

import json
import shutil

import onnx
import pytest
from verbs import edgepeft


def documents(*arguments):
    done = edgepeft("info", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_bundle_says_what_its_tasks_answer_take_and_whether_they_can_be_tuned(bundle):
    document = documents(bundle)
    assert (document["schema"], document["kind"]) == ("edgepeft.info/1", "bundle")
    assert document["backbone"]["bytes"] == (bundle / "model.safetensors").stat().st_size
    tasks = {task["task"]: task for task in document["tasks"]}
    stated = json.loads((bundle / "edgepeft.json").read_bytes())["tasks"]
    assert set(tasks) == set(stated)
    for name, task in tasks.items():
        assert task["labels"] == stated[name]["labels"]
        assert task["trainable_parameters"] == stated[name]["trainable_parameters"]
        assert (task["tunable"], task["untunable"]) == (True, "")
        assert task["problem"] == ""


def test_a_damaged_task_is_named_and_the_others_are_shown(bundle):
    model = onnx.load(bundle / "tasks/mood.onnx")
    model.doc_string = "altered"
    onnx.save(model, bundle / "tasks/mood.onnx")
    problems = {task["task"]: task["problem"] for task in documents(bundle)["tasks"]}
    assert [name for name, problem in problems.items() if problem] == ["mood"]
    shown = edgepeft("info", bundle)
    assert "task mood cannot be run" in shown.stderr
    assert "pair" in shown.stdout


def test_scores_stand_beside_the_baselines_and_labels_are_no_markup(bundle):
    manifest = json.loads((bundle / "edgepeft.json").read_bytes())
    baselines = {"majority": {"test": 0.5}, "linear head": {"test": 0.75}, "odd": 7}
    manifest["tasks"]["mood"]["metrics"] = {"metric": "accuracy", "test": 0.875, "baselines": baselines}
    manifest["tasks"]["mood"]["labels"] = ["[red]no", "yes\x1b[2J"]
    manifest["tasks"]["pair"]["metrics"] = {"metric": ["accuracy"], "test": "good"}
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    shown = " ".join(edgepeft("info", bundle).stdout.split())
    for words in ("accuracy 0.875", "(majority 0.500,", "0.750)", "[red]no,", "yes\\x1b[2J"):
        assert words in shown


def test_a_trained_delta_is_shown_by_its_card(exported):
    folder = next(exported.parent.glob("*/delta.json")).parent
    document = documents(folder)
    card = json.loads((folder / "delta.json").read_bytes())
    (task,) = document["tasks"]
    assert document["kind"] == "delta"
    assert {name: task[name] for name in ("task", "method", "labels")} == {
        name: card[name] for name in ("task", "method", "labels")
    }
    assert task["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert task["task"] in edgepeft("info", folder).stdout


@pytest.mark.parametrize("where", ["", "nothing"])
def test_what_is_neither_is_refused(tmp_path, where):
    done = edgepeft("info", tmp_path / where)
    assert (done.returncode, done.stdout) == (2, "")
    assert "neither a bundle" in done.stderr


def test_a_bundle_without_its_manifest_is_no_bundle(bundle):
    shutil.move(bundle / "edgepeft.json", bundle / "elsewhere.json")
    assert edgepeft("info", bundle).returncode == 2

"""What is published of a task is one thing: entry, graph and check; and a change of any of them is a change."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from boards_of import answers, tree
from safetensors.numpy import load_file, save_file
from verbs import edgepeft

from edgepeft.bundle.bundle import Bundle
from edgepeft.deploy.install import commit_tasks, prepare_exported, roll_back
from edgepeft.fleet.repository import FolderRepository, Keys


def said(path, change):
    """Change what an entry says in a document that has it by ``path``'s keys."""
    document = json.loads(path.read_bytes())
    change(document["tasks"]["mood"])
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("field", ["labels", "chosen"])
def test_an_entry_that_differs_from_its_graph_is_not_published(field, fleet, bundle):
    def change(entry):
        entry.update({"labels": {"labels": ["yes", "no"]}, "chosen": {"chosen": {"temperature": 7.0}}}[field])

    said(bundle / "edgepeft.json", change)
    before = tree(fleet.repository, but="nothing")
    done = edgepeft("publish", bundle, fleet.repository, "--keys", fleet.keys)
    assert done.returncode == 3 and f"its entry says {field}" in done.stderr
    assert {path: sha for path, sha in tree(fleet.repository, but="nothing").items() if "lock" not in path} == before


def test_an_entry_that_was_signed_and_differs_from_its_graph_is_not_taken_up(fleet, board, retrained):
    fleet.publish(retrained / "newer")
    repository = FolderRepository(fleet.repository, Keys(fleet.keys, fleet.repository))
    with repository.edit_targets("stable") as signed:
        target = signed.targets["stable/tasks/mood.onnx"]
        entry = json.loads(target.custom["edgepeft"]) | {"labels": ["yes", "no"]}
        target.unrecognized_fields["custom"] = {"edgepeft": json.dumps(entry)}
    repository.put_in_force()
    before = tree(board)
    assert "its entry says labels" in fleet.pull(board).refused["mood"] and tree(board) == before


def changed(exported, folder, change):
    """A copy of the bundle with another version of ``mood``, put in force as ``edgepeft add`` does."""
    spare, other = (shutil.copytree(exported, folder / name) for name in ("spare", "other"))
    change(spare / "tasks")
    opened = Bundle(other)
    commit_tasks(opened, [prepare_exported(opened, spare / "tasks" / "mood.onnx")], replace=True)
    return other


def another_temperature(tasks):
    model = onnx.load(tasks / "mood.onnx")
    for entry in model.metadata_props:
        if entry.key == "edgepeft.card":
            entry.value = json.dumps(json.loads(entry.value) | {"chosen": {"temperature": 4.0}})
    onnx.save(model, tasks / "mood.onnx")


def another_check(tasks):
    path = tasks / "mood.check.safetensors"
    save_file({name: np.ascontiguousarray(rows[:2]) for name, rows in load_file(path).items()}, path)


@pytest.mark.parametrize("change", [another_temperature, another_check])
def test_a_change_of_any_part_is_published_and_taken_up(change, fleet, board, exported, tmp_path):
    other = changed(exported, tmp_path, change)
    done = fleet.publish(other)
    assert any(place.startswith("tasks/mood") for place in done.new)
    assert fleet.pull(board).taken == ("mood",)
    files = ("mood.onnx", "mood.check.safetensors")
    assert [(board / "tasks" / name).read_bytes() for name in files] == [
        (other / "tasks" / name).read_bytes() for name in files
    ]
    assert (answers(board) == answers(exported)) == (change is another_check)
    assert fleet.pull(board).taken == ()
    roll_back(board, "mood")
    assert fleet.pull(board).kept == {"mood": "rolled back on this board"}

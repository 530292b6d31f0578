"""Bundles that hold more than a graph and tasks of it: text, templates, 8 bits, and older ones that name fewer files."""

from __future__ import annotations

import pytest

from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.task_name import CHECK, GRAPH
from edgepeft.fleet.publish import publish
from edgepeft.fleet.pull import pull, replay_task
from edgepeft.runtime.runtime import Runtime


def arrived(bundle, folder):
    """What a board has of a bundle."""
    publish(bundle, folder / "repository", folder / "keys")
    pull(str(folder / "repository"), folder / "board", root=folder / "repository" / "metadata" / "1.root.json")
    return folder / "board"


def test_an_older_bundle_whose_manifest_does_not_name_its_tokenizer_arrives_with_it(bundle, tmp_path):
    Manifest.read(bundle).model_copy(update={"files": {}}).write(bundle)
    board = arrived(bundle, tmp_path)
    assert (board / "tokenizer.json").read_bytes() == (bundle / "tokenizer.json").read_bytes()
    assert sorted(Manifest.read(board).files) == ["1_Pooling/config.json", "config.json", "tokenizer.json"]


def test_what_the_publisher_allows_of_8_bits_and_compared_with_holds_on_a_board(exported):
    bundle = Bundle(exported)
    entry = bundle.entry("mood")
    stated = entry.verification.model_copy(update={"reference": "training graph", "changed_tolerance": 0.25})
    content = {end: (exported / "tasks" / f"mood{end}").read_bytes() for end in (GRAPH, CHECK)}
    found = replay_task(bundle, "mood", entry.model_copy(update={"verification": stated}), content).entry.verification
    assert (found.reference, found.changed_tolerance) == ("training graph", 0.25)
    assert found.max_abs_difference < 1e-4


@pytest.mark.slow
def test_templates_arrive_and_can_be_tuned_from(trainable, tmp_path):
    board = arrived(trainable, tmp_path)
    assert Manifest.read(board).templates.keys() == Manifest.read(trainable).templates.keys() == {"lora"}
    for path in (trainable / "templates").glob("lora.*"):
        if path.name != "lora.train.onnx":
            assert (board / "templates" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_tasks_that_write_text_arrive_with_both_graphs(tiny, tmp_path):
    from writing import export_several

    export_several(tiny("t5"), tmp_path)
    board = arrived(tmp_path / "bundle", tmp_path)
    written = []
    for folder in (board, tmp_path / "bundle"):
        with Runtime(folder, cache=False, threads=1) as runtime:
            written.append([str(runtime.write(task, ["w5 w6 w7"])) for task in ("lora-0", "full")])
    assert written[0] == written[1]

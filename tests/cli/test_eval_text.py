"""`edgepeft eval` of a task that writes text: scores of what the bundle writes, beside every right answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltas import random_delta, saved
from typer.testing import CliRunner

from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import app
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

TEXTS = ["w9 w10", "w11", "w12 w13 w14", "w15 w16"]


@pytest.fixture(scope="module")
def bundle(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    backbone = open_backbone(str(tiny("t5")))
    posed = {"source": "w8 {text}", "target": "{answers}", "max_target_length": 5}
    delta = random_delta(backbone, "layernorm", "sum", None, head="text", template=posed)
    export_bundle(backbone, [saved(delta, folder / "sum")], folder / "bundle")
    return folder / "bundle"


def evaluated(bundle: Path, path: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["eval", str(bundle), "--task", "sum", "--data", str(path), *options])


def test_answers_are_scored_beside_the_best_of_their_references(bundle: Path, tmp_path: Path):
    with Runtime(bundle) as runtime:
        written = [answer.text for answer in runtime.write("sum", TEXTS, Decoding(max_new_tokens=5))]
    # The first two rows have what is written among their answers, the others a word that never is.
    answers = [["[PAD]", text] if i < 2 else ["[PAD]"] for i, text in enumerate(written)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": t, "answers": a}) + "\n" for t, a in zip(TEXTS, answers, strict=True)))
    found = json.loads(evaluated(bundle, path, "--metric", "exact_match", "--json").stdout)
    assert (found["metric"], found["score"], found["rows"]) == ("exact_match", 0.5, 4)
    assert found["texts"]["exact_match"] == 0.5
    assert found["averaged"] == "mean over rows, each by its best reference"
    assert [(row["text"], row["answer"], row["loss"]) for row in found["worst"][:2]] == [
        (f"w8 {TEXTS[i]}", written[i], 1.0) for i in (2, 3)
    ]
    shown = evaluated(bundle, path)
    assert shown.exit_code == 0 and "sum: F1 0.500 on 4 rows" in shown.stdout


def test_a_metric_of_labels_and_a_row_without_its_answer_are_refused(bundle: Path, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "w9", "label": "yes"}) + "\n")
    assert "accuracy is no metric of text" in str(evaluated(bundle, path, "--metric", "accuracy").exception)
    assert "no column answers. Found columns: text, label" in str(evaluated(bundle, path).exception)


def test_what_was_cut_is_said(bundle: Path, tmp_path: Path):
    """Sources longer than the task reads, and texts that reached the longest target of its training."""
    path = tmp_path / "rows.jsonl"
    lengths = (300, 1, 300)  # words
    path.write_text("".join(json.dumps({"text": "w9 " * n, "answers": "w10"}) + "\n" for n in lengths))
    with Runtime(bundle) as runtime:
        written = runtime.write("sum", ["w9 " * n for n in lengths], Decoding(max_new_tokens=5))
    cut = sum(not answer.ended for answer in written)
    assert cut, "none is cut, so nothing is tested"
    done = evaluated(bundle, path, "--json")
    assert json.loads(done.stdout)["rows"] == 3
    assert "2 answer(s) read a text cut to the task's maximal length." in done.stderr
    assert f"{cut} text(s) were cut at 5 tokens." in done.stderr

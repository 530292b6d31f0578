"""Tasks posed as text, from training to answers: one rendering of rows in every verb."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltas import random_delta, saved
from tolerance import exact_logits
from typer.testing import CliRunner

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.card import read_card
from edgepeft.bundle.manifest import Manifest
from edgepeft.cli._main import app
from edgepeft.data.pattern import UnreadableRow
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.schemas import PredictRequest
from edgepeft.training.exporting.bundle import export_bundle

SOURCE = "w5 w6 {one} w7 {two}"


def verb(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def posed(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a task that reads two columns, one that reads one, and one that reads texts; deltas beside it."""
    folder = tmp_path_factory.mktemp("posed")
    backbone = open_backbone(str(tiny("t5")))
    forms = {
        "two": {"source": SOURCE, "targets": ("no", "not yes")},
        "one": {"source": "w8 {one}", "targets": None},
        "plain": {},
    }
    deltas = [
        random_delta(backbone, "lora", name, ("no", "yes"), seed=i, template=form)
        for i, (name, form) in enumerate(forms.items())
    ]
    export_bundle(backbone, [saved(delta, folder / delta.card.task) for delta in deltas], folder / "bundle")
    return folder / "bundle"


ROWS = [{"one": "w9 w10", "two": "w11"}, {"one": "w12", "two": "w13 w14 w15"}]
FILLED = [Text("w5 w6 w9 w10 w7 w11"), Text("w5 w6 w12 w7 w13 w14 w15")]


def test_multirc_and_parts_are_scored_as_superglue_and_glue_do(posed: Path, tmp_path: Path):
    """EM by question and F1a as SuperGLUE's own script has them, on answers that the bundle itself gives."""
    rows: list[dict[str, Any]] = [{"one": f"w{9 + i}", "two": f"w{30 - i}"} for i in range(12)]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = verb("run", posed, "--task", "two", "--input", asked).splitlines()
    given = [json.loads(line)["predictions"][0]["label"] for line in lines]
    assert len(set(given)) == 2, "all answers are one, so nothing is tested"
    wrong = {"no": "yes", "yes": "no"}
    for i, (row, answer) in enumerate(zip(rows, given, strict=True)):
        # Three answers a question; questions of two paragraphs have the same number.  Rows 4 and 5, of one, are wrong.
        row["label"], row["part"] = wrong[answer] if i in (4, 5) else answer, ("matched", "mismatched")[i % 2]
        row["idx"] = {"paragraph": i // 6, "question": i // 3 % 2, "answer": i % 3}
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(verb("eval", posed, "--task", "two", "--data", data, "--by", "part", "--metric", "f1", "--json"))

    labels, exact = [row["label"] for row in rows], []
    for question in {(row["idx"]["paragraph"], row["idx"]["question"]) for row in rows}:
        of = [i for i, row in enumerate(rows) if (row["idx"]["paragraph"], row["idx"]["question"]) == question]
        exact.append([given[i] for i in of] == [labels[i] for i in of])

    def f1(places: Any) -> float:
        pairs = [(labels[i] == "yes", given[i] == "yes") for i in places]
        right = pairs.count((True, True))
        return 2 * right / (2 * right + pairs.count((True, False)) + pairs.count((False, True)))

    assert found["questions"] == {"exact_match": sum(exact) / len(exact), "questions": 4} and sum(exact) == 3
    assert found["score"] == pytest.approx(f1(range(12)))
    for part, start in (("matched", 0), ("mismatched", 1)):
        assert found["parts"][part] == {"score": pytest.approx(f1(range(start, 12, 2))), "rows": 6}
    for same in ("idx", "idx.paragraph,idx.question"):
        shown = verb("eval", posed, "--task", "two", "--data", data, "--metric", "f1", "--question", same)
        assert "exact match 0.750 on 4 questions" in shown
    shown = verb("eval", posed, "--task", "two", "--data", data, "--question", "part", "--by", "part")
    assert "exact match 0.000 on 2 questions" in shown and "  matched: 0.833 on 6 rows" in shown
    refused = CliRunner().invoke(app, ["eval", str(posed), "--task", "two", "--data", str(data), "--by", "genre"])
    assert "there is no column genre. Found columns: one, two, label, part, idx" in str(refused.exception)


def test_answers_to_columns_are_those_of_the_text_that_they_make(tiny: Callable[..., Path], posed: Path):
    backbone = open_backbone(str(tiny("t5")))
    delta = random_delta(
        backbone, "lora", "two", ("no", "yes"), seed=0, template={"source": SOURCE, "targets": ("no", "not yes")}
    )
    exact = exact_logits(delta, load_model(backbone, "eager"), backbone.encoder().encode(FILLED, 40).inputs)
    with Runtime(posed) as runtime:
        exact.require(np.array([answer.logits for answer in runtime.predict("two", ROWS)]))
        assert set(runtime.predict("two", ROWS[:1])[0].scores) == {"no", "yes"}  # not what is written of them


def test_a_text_alone_is_the_one_column_and_a_pair_needs_names(posed: Path):
    with Runtime(posed) as runtime:
        (text,), (row,) = runtime.predict("one", "w9 w10"), runtime.predict("one", [{"one": "w9 w10", "other": 1}])
        assert text.logits == row.logits
        with pytest.raises(UnreadableRow, match=r"row 0: no column one, which .* reads\. Found columns: sentence1"):
            runtime.predict("two", "w9")
        with pytest.raises(UnreadableRow, match="row 1: no column two"):
            runtime.predict("two", [ROWS[0], {"one": "w9"}])


def test_tasks_of_different_sources_answer_the_same_rows(posed: Path):
    rows = [{**row, "sentence1": row["two"]} for row in ROWS]
    with Runtime(posed) as runtime:
        alone = {task: [a.logits for a in runtime.predict(task, rows)] for task in ("two", "one", "plain")}
        together = runtime.predict_all(["two", "one", "plain"], rows)
        mixed = runtime.predict_mixed(["two", "plain", None], [rows[0], rows[1], rows[1]])
        assert runtime.predict("plain", [row["two"] for row in ROWS])[0].logits == alone["plain"][0]
    for task, logits in alone.items():
        np.testing.assert_allclose([a.logits for a in together[task]], logits, atol=1e-4)
    np.testing.assert_allclose([a.logits for a in mixed[:2]], [alone["two"][0], alone["plain"][1]], atol=1e-4)


def test_run_and_eval_read_the_columns_of_files(posed: Path, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({**row, "label": label}) + "\n" for row, label in zip(ROWS, ("no", "yes"), strict=True))
    )
    answers = [
        json.loads(line) for line in verb("run", posed, "--task", "two", "--task", "one", "--input", path).splitlines()
    ]
    with Runtime(posed) as runtime:
        expected = runtime.predict("two", ROWS)
    assert [a["predictions"][0]["label"] for a in answers] == [e.label for e in expected]
    assert [{name: a[name] for name in ("one", "two")} for a in answers] == ROWS
    scored = json.loads(verb("eval", posed, "--task", "two", "--data", path, "--json"))
    assert scored["score"] == np.mean([e.label == label for e, label in zip(expected, ("no", "yes"), strict=True)])
    assert scored["worst"][0]["text"] in {text.first for text in FILLED}
    refused = CliRunner().invoke(app, ["run", str(posed), "--task", "plain", "--task", "two", "--input", str(path)])
    assert refused.exit_code == 1 and "no column sentence1" in str(refused.exception)


def test_a_row_of_each_task_in_one_file(posed: Path, tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("which,one,two,sentence1\ntwo,w9,w10,\nplain,,,w9\none,w9,,\n")
    answers = [json.loads(line) for line in verb("run", posed, "--input", path, "--task-column", "which").splitlines()]
    assert [a["task"] for a in answers] == ["two", "plain", "one"]
    assert all(a["predictions"][0]["label"] in ("no", "yes") for a in answers)


def test_the_manifest_says_how_a_task_is_posed_and_older_ones_say_nothing(posed: Path):
    entry = Manifest.read(posed).task("two")
    assert (entry.source, entry.targets, entry.labels) == (SOURCE, ("no", "not yes"), ("no", "yes"))
    card = read_card(posed.parent / "two").model_dump(mode="json")
    assert (card["source"], card["targets"]) == (SOURCE, ["no", "not yes"])
    older = json.loads((posed.parent / "plain" / "delta.json").read_text())
    new = ("source", "target", "targets", "max_target_length")
    (posed.parent / "plain" / "delta.json").write_text(json.dumps({k: v for k, v in older.items() if k not in new}))
    assert read_card(posed.parent / "plain").source is None


def test_a_check_file_of_the_tasks_own_rows_needs_its_columns(tiny: Callable[..., Path], posed: Path, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    more = ["--backbone", tiny("t5"), "--verify-data", path, "--weights", "int8"]
    verb("export", "--delta", posed.parent / "two", *more, "--out", tmp_path / "bundle")
    assert Manifest.read(tmp_path / "bundle").task("two").verification.data.rows == len(ROWS)
    options = ["export", "--delta", posed.parent / "plain", *more, "--out", tmp_path / "other"]
    refused = CliRunner().invoke(app, [str(word) for word in options])
    assert refused.exit_code == 1 and "no column sentence1" in str(refused.exception)


def test_a_request_may_have_fields():
    asked = PredictRequest.model_validate({"rows": [{"fields": ROWS[0]}, "w9", {"text": "w9", "second": "w10"}]})
    assert asked.texts == [ROWS[0], "w9", ("w9", "w10")]
    assert PredictRequest.model_validate({"fields": ROWS[1]}).texts == [ROWS[1]]
    for wrong in (
        {"fields": ROWS[0], "text": "a"},
        {"fields": ROWS[0], "second": "a"},
        {"rows": [{"fields": {}, "text": ""}]},
        {},
    ):
        with pytest.raises(ValueError, match="give text"):
            PredictRequest.model_validate(wrong)


def test_labels_that_are_numbers_have_a_mean_and_are_scored_as_numbers(tiny: Callable[..., Path], tmp_path: Path):
    numbers = ("no", "yes", "perhaps")  # what stands for them: the tiny vocabulary has no numerals
    posed = {"source": "w8 {sentence1}", "targets": numbers, "step": 2.5}
    backbone = open_backbone(str(tiny("t5")))
    delta = random_delta(backbone, "layernorm", "alike", ("0.0", "2.5", "5.0"), template=posed)
    export_bundle(backbone, [saved(delta, tmp_path / "alike")], tmp_path / "bundle")
    path = tmp_path / "rows.jsonl"
    texts, labels = ("w9 w10", "w12", "w13 w14 w15", "w20"), (0.3, 2.6, 4.2, 5)
    path.write_text(
        "".join(json.dumps({"sentence1": t, "label": n}) + "\n" for t, n in zip(texts, labels, strict=True))
    )
    with Runtime(tmp_path / "bundle") as runtime:
        answers = runtime.predict("alike", list(texts))
    for answer in answers:
        scores = answer.as_json()["scores"]
        assert answer.as_json()["expected"] == pytest.approx(2.5 * scores["2.5"] + 5 * scores["5.0"], abs=1e-5)
    scored = json.loads(
        verb("eval", tmp_path / "bundle", "--task", "alike", "--data", path, "--metric", "pearson", "--json")
    )
    best = [float(answer.label or "nan") for answer in answers]
    expected = np.corrcoef(best, [0.0, 2.5, 5.0, 5.0])[0, 1] if len(set(best)) > 1 else 0.0
    assert scored["score"] == pytest.approx(expected)

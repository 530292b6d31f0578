"""`edgepeft look`: what training would make of a file."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest
from tiny import write_model
from verbs import edgepeft


def look(path, *more):
    done = edgepeft("look", path, *more, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def jsonl(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_labels_lengths_copies_and_bad_rows_are_counted(tmp_path):
    rows = [{"text": "w7 " * (1 + i % 3), "label": "ab"[i % 2]} for i in range(40)]
    path = jsonl(tmp_path / "rows.jsonl", [*rows, "broken", {"text": "w7 " * 30, "label": "b"}])
    found, said = look(path, "--max-length", 20)
    assert (found["kind"], found["rows"]) == ("classification", 41)
    assert found["copies"] == 41 - len({(row["text"], row["label"]) for row in rows}) - 1
    assert {each["label"]: each["rows"] for each in found["labels"]} == {"a": 20, "b": 21}
    assert found["lengths"] == {"unit": "words", "median": 2, "of_95_percent": 3, "longest": 30, "over_20": 1}
    assert "1 that cannot be used" in found["split"] and "line 41: not JSON" in said
    assert shlex.split(found["train"])[-1] == "--skip-bad"  # as training refuses such rows without it
    path.write_text("\n".join(line for line in path.read_text().splitlines() if line != "broken"))
    assert "--skip-bad" not in look(path)[0]["train"]


def test_standard_input_is_read_once(monkeypatch):
    rows = "".join(json.dumps({"text": f"w{i}", "label": "ab"[i % 2]}) + "\n" for i in range(20)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(rows))))
    found, _ = look("-")
    assert found["rows"] == 20 and found["train"].endswith("--data - --task task --out task")


def test_standard_input_is_of_the_kind_that_its_first_rows_tell(monkeypatch):
    rows = "text,stars\n" + "".join(f"w{i},{i % 5}\n" for i in range(20))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(rows.encode()))))
    found, said = look("-")
    assert (found["kind"], found["rows"]) == ("regression", 20) and "--kind regression is taken" in said


def test_what_a_file_is_read_as_is_said_once(tmp_path):
    (path := tmp_path / "movies.bio").write_text("O\thi\nB-ACTOR\tBruce\n\n" * 20)
    _, said = look(path)
    assert said.count("the first column has the tags") == 1


def test_the_command_that_trains_has_a_name_that_a_task_may_have(tmp_path):
    path = jsonl(tmp_path / "my reviews (1).jsonl", [{"text": f"w{i}", "label": "ab"[i % 2]} for i in range(20)])
    assert look(path)[0]["train"].endswith(f"--data {shlex.quote(str(path))} --task my-reviews-1 --out my-reviews-1")


def test_with_a_backbone_lengths_are_in_its_tokens_and_the_command_trains(tmp_path):
    model = write_model(tmp_path / "model", "bert")
    path = jsonl(
        tmp_path / "rows.jsonl", [{"text1": "w7", "text2": f"w8 w{9 + i % 3}", "score": i / 3} for i in range(40)]
    )
    found, _ = look(path, "--backbone", model)
    assert found["kind"] == "regression" and found["labels"] == []
    assert found["lengths"]["longest"] == 3 + 3 and found["lengths"]["unit"] == "tokens"  # [CLS] and two [SEP]
    command = shlex.split(found["train"])
    assert command[:2] == ["edgepeft", "train"] and command[-2:] == ["--out", "rows"]
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    done = edgepeft(*command[1:-1], tmp_path / "out", "--steps", 1)
    assert done.returncode == 0, done.stderr


def test_entities_are_counted_by_their_label_and_the_table_shows_them(tmp_path):
    path = jsonl(
        tmp_path / "rows.jsonl", [{"text": "Ada came.", "entities": [[0, 3, "PER"]] * (i % 2)} for i in range(30)]
    )
    found, _ = look(path)
    assert [(each["label"], each["rows"]) for each in found["labels"]] == [("PER", 15)]
    shown = edgepeft("look", path).stdout
    assert "tokens" in shown and "PER" in shown and "edgepeft train" in shown


def test_text_to_write_is_told_with_its_patterns(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"article": "a b c", "summary": "a"}] * 3)
    assert '"summarize: {article}"' in edgepeft("look", path).stdout
    found, _ = look(path)
    assert (found["kind"], found["source"], found["target"]) == ("text", "summarize: {article}", "{summary}")

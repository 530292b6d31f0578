"""`edgepeft run --out`: rows with their answers, in every format, and rows that cannot be read."""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings

import pytest
from deltas import random_delta, saved
from typer.testing import CliRunner

from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import app
from edgepeft.common.errors import DataError, UsageError
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

ROWS = [{"id": i, "text": f"w{7 + i} w{9 + i}", "label": "gold"} for i in range(5)]


def run(bundle, task, rows, out, **more):
    given = [part for name, value in more.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return CliRunner().invoke(
        app, ["run", str(bundle), "--task", task, "--input", str(rows), "--out", str(out), *given]
    )


@pytest.fixture
def task(bundle):
    return next(name for name, entry in Runtime(bundle).bundle.manifest.tasks.items() if entry.labels)


@pytest.fixture
def answers(bundle, task):
    with Runtime(bundle, threads=1) as runtime:
        return runtime.predict(task, [row["text"] for row in ROWS])


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def read(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet", reason="pip install edgepeft[data]").read_table(path).to_pylist()
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_keep_their_columns_and_gain_their_answers_in_order(bundle, task, answers, rows, tmp_path, end):
    if end == ".parquet":
        pytest.importorskip("pyarrow", reason="pip install edgepeft[data]")
    done = run(bundle, task, rows, out := tmp_path / f"answers{end}", batch_size=2)
    assert done.exit_code == 0, done.output
    found = read(out)
    assert [(int(row["id"]), row["text"], row["label"]) for row in found] == [(*row.values(),) for row in ROWS]
    assert [row[f"{task}.label"] for row in found] == [answer.label for answer in answers]
    assert [float(row["probability"]) for row in found] == pytest.approx([a.score for a in answers], abs=1e-5)
    assert not any(row["error"] for row in found)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_that_cannot_be_read_has_no_answer_and_says_why(bundle, task, tmp_path):
    lines = ['{"text": 5, "id": 0}', "broken", '{"text": "w7 w9", "id": 2}', '{"text": null, "id": 3}']
    (rows := tmp_path / "rows.jsonl").write_text("\n".join(lines))
    done = run(bundle, task, rows, out := tmp_path / "answers.csv", batch_size=1)
    assert done.exit_code == 1 and "3 rows could not be read" in done.output
    found = read(out)
    assert [row["id"] for row in found] == ["0", "", "2", "3"]
    assert [bool(row["label"]) for row in found] == [False, False, True, False]
    assert "must be a text; found 5" in found[0]["error"] and "not JSON" in found[1]["error"]
    assert found[2]["error"] == "" and "must be a text; found null" in found[3]["error"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_keep_their_columns_after_a_first_one_that_cannot_be_read(bundle, task, tmp_path, end):
    if end == ".parquet":
        pytest.importorskip("pyarrow", reason="pip install edgepeft[data]")
    (rows := tmp_path / "rows.csv").write_text("text,error,id\nw7,w8,E1,0\nw7 w9,E2,1\n")
    done = run(bundle, task, rows, out := tmp_path / f"answers{end}", batch_size=1)
    assert done.exit_code == 1, done.output
    bad, good = read(out)
    assert "4 cells, but 3 columns" in bad["edgepeft.error"] and not good["edgepeft.error"]
    assert (good["text"], good["error"], good["id"]) == ("w7 w9", "E2", "1") and good["label"]


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_a_column_that_only_a_later_row_has_is_kept_or_said_to_be_left_out(bundle, task, tmp_path, end):
    if end == ".parquet":
        pytest.importorskip("pyarrow", reason="pip install edgepeft[data]")
    (rows := tmp_path / "rows.jsonl").write_text('{"sentence1": "w7"}\n{"sentence1": "w8", "lang": "en"}\n' * 2)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert run(bundle, task, rows, out := tmp_path / f"answers{end}").exit_code == 0
    said = [str(note.message) for note in notes if "the column lang of a later row is left out" in str(note.message)]
    assert len(said) == (end == ".csv") and [row.get("lang") for row in read(out)][1::2] == [None if said else "en"] * 2


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("end", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_half_of_a_pair_of_utf_16_is_written_as_its_escape(bundle, task, tmp_path, end):
    (rows := tmp_path / "rows.jsonl").write_text('{"text": "w7 \\ud83d"}\n')
    if end == ".parquet":
        pytest.importorskip("pyarrow", reason="pip install edgepeft[data]")
    done = run(bundle, task, rows, out := tmp_path / f"answers{end}")
    if end == ".parquet":
        assert isinstance(done.exception, DataError) and "take .jsonl" in str(done.exception)
        return
    assert done.exit_code == 0, done.output
    assert "w7 \\ud83d" in out.read_text()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_column_that_holds_an_object_is_kept_as_json(bundle, task, tmp_path):
    (rows := tmp_path / "rows.jsonl").write_text('{"text": "w7", "meta": {"a": [1]}}\n')
    done = run(bundle, task, rows, out := tmp_path / "answers.csv")
    (found,) = read(out)
    assert done.exit_code == 0
    assert json.loads(found["meta"]) == {"a": [1]} and "scores" not in found


def test_a_translation_in_an_object_is_read_by_the_columns_of_its_languages(tiny, tmp_path):
    posed = {"source": "translate en to de: {en}", "target": "{de}", "max_target_length": 3}
    backbone = open_backbone(str(tiny("t5")))
    delta = random_delta(backbone, "layernorm", "german", None, head="text", template=posed)
    export_bundle(backbone, [saved(delta, tmp_path / "german")], tmp_path / "bundle")
    (rows := tmp_path / "rows.jsonl").write_text('{"translation": {"en": "w9 w10", "de": "w11"}}\n')
    done = run(tmp_path / "bundle", "german", rows, out := tmp_path / "answers.jsonl")
    assert done.exit_code == 0, done.output
    (found,) = read(out)
    with Runtime(tmp_path / "bundle") as runtime:
        (expected,) = runtime.write("german", [{"en": "w9 w10"}])
    assert found["translation"] == {"en": "w9 w10", "de": "w11"} and found["text"] == expected.text


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_standard_input_is_answered_on_standard_output(bundle, task, answers, tmp_path, monkeypatch):
    (tmp_path / "given").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with (tmp_path / "given").open() as given, (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdin", given)
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            app(["run", str(bundle), "--task", task, "--input", "-", "--out", "-"])
    assert ended.value.code == 0
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row[f"{task}.label"] for row in found] == [answer.label for answer in answers]


def test_lines_of_standard_input_that_are_no_utf_8_are_refused_by_their_number(bundle, task, monkeypatch):
    given = io.BytesIO(b"\xef\xbb\xbfw1 w2\nw3 gr\xfcn\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given, errors="surrogateescape"))  # as in the locale C
    with pytest.raises(DataError, match="-:2: not UTF-8"):
        app(["run", str(bundle), "--task", task, "-"], standalone_mode=False)


def test_typed_lines_are_answered_before_the_next_ones_are_waited_for(bundle, task, tmp_path, monkeypatch):
    pieces, seen = [b"w1 w2\r\nw3 ", b"w4\nw5\n\n", b"w6"], []

    class Typing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            seen.append((tmp_path / "out").read_text().count("\n"))
            piece = pieces.pop(0) if pieces else b""
            buffer[: len(piece)] = piece
            return len(piece)

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Typing())))
        monkeypatch.setattr(sys, "stdout", out)
        app(["run", str(bundle), "--task", task, "-"], standalone_mode=False)
    assert seen == [0, 1, 4, 4]
    texts = [line.split("\t")[-1] for line in (tmp_path / "out").read_text().splitlines()]
    assert texts == ["w1 w2", "w3 w4", "w5", "", "w6"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(bundle, task, rows, tmp_path):
    for out, message in ((rows, "is the file that is read"), (tmp_path / "answers.txt", "ends in .csv, .tsv, .jsonl")):
        done = run(bundle, task, rows, out)
        assert isinstance(done.exception, UsageError) and message in str(done.exception)
    assert rows.read_text().count("\n") == len(ROWS)

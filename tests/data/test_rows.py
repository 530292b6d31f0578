"""Reading rows: what the three formats share, and every way in which a file can be wrong."""

import errno
import json
import sys
from pathlib import Path

import pytest

from edgepeft.common.errors import DataError, MissingPackage, UsageError
from edgepeft.data.parts import load_data
from edgepeft.data.rows import Columns, read_rows
from edgepeft.tasks.regression import Regression


def rows_of(tmp_path, content, name="rows.jsonl", labels=True):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(path, labels=labels))


def plain(rows):
    return [(row.sentence1, row.sentence2, row.label) for row in rows]


SAME = [("Good, \tbad", "b", "x"), ("", "é\U0001f600", "1")]


def test_the_three_formats_give_the_same_rows(tmp_path):
    jsonl = "".join(json.dumps({"sentence1": a, "sentence2": b, "label": c}) + "\n" for a, b, c in SAME)
    table = 'label,other,sentence1,sentence2\nx,,"Good, \tbad",b\n1,o,,é\U0001f600\n'
    assert plain(rows_of(tmp_path, jsonl)) == SAME
    assert plain(rows_of(tmp_path, table, "rows.csv")) == SAME
    tsv = "sentence1\tsentence2\tlabel\nGood, bad\tb\tx\n\té\U0001f600\t1\n"
    assert plain(rows_of(tmp_path, tsv, "ROWS.TSV")) == [("Good, bad", "b", "x"), SAME[1]]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path):
    table = b"\xef\xbb\xbfsentence1,label\r\none,a\r\n"
    assert plain(rows_of(tmp_path, table, "rows.csv")) == [("one", None, "a")]
    assert plain(rows_of(tmp_path, b'\xef\xbb\xbf{"sentence1":"one","label":"a"}\r\n')) == [("one", None, "a")]


def test_a_number_is_the_same_label_in_jsonl_and_csv(tmp_path):
    (from_json,) = rows_of(tmp_path, '{"sentence1": "t", "label": 1}')
    (from_csv,) = rows_of(tmp_path, "sentence1,label\nt,1\n", "rows.csv")
    assert from_json.label == from_csv.label == "1"


def test_lines_are_counted_through_blank_lines_and_quoted_line_breaks(tmp_path):
    rows = rows_of(tmp_path, 'sentence1,label\n"two\nlines",a\n\nlast,b\n', "rows.csv")
    assert [(row.sentence1, row.line) for row in rows] == [("two\nlines", 2), ("last", 5)]


def test_a_lone_quotation_mark_in_tsv_swallows_nothing(tmp_path):
    rows = rows_of(tmp_path, 'sentence1\tlabel\n"open\ta\nnext\tb\n', "rows.tsv")
    assert plain(rows) == [('"open', None, "a"), ("next", None, "b")]


def test_a_text_of_a_million_characters_is_read(tmp_path):
    (row,) = rows_of(tmp_path, "sentence1,label\n" + "x" * 1_000_000 + ",a\n", "rows.csv")
    assert len(row.sentence1) == 1_000_000


def test_without_labels_the_column_may_be_missing_and_is_ignored(tmp_path):
    assert plain(rows_of(tmp_path, '{"sentence1": "a"}\n{"sentence1": "b", "label": null}', labels=False)) == [
        ("a", None, None),
        ("b", None, None),
    ]


def test_rows_are_streamed_and_not_collected(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"sentence1": "a", "label": "x"}\nbroken')
    rows = read_rows(path, labels=True)
    assert next(rows).sentence1 == "a"
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "has no rows"),
        ("a.csv", "sentence1,label\n", "has no rows"),
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}',
            "a.jsonl:1: no column sentence1. Found columns: text, label. Expected",
        ),
        ("a.csv", "sentence1,target\na,b\n", "a.csv:2: no column label. Found columns: sentence1, target."),
        (
            "a.csv",
            "text;label\na;b\n",
            "a.csv:2: no column sentence1 and no column label. Found columns: text;label. Expected: sentence1, optionally "
            "sentence2, and label; for others: --text-column NAME, --label-column NAME. The one column looks like several, "
            "with semicolons; a csv separates them by commas.",
        ),
        (
            "a.csv",
            "text\na\nb\n",
            "no column sentence1 and no column label. Found columns: text. Expected: sentence1, optionally sentence2, and "
            "label; for others: --text-column NAME, --label-column NAME. The table has one column alone; a csv separates",
        ),
        (
            "a.tsv",
            "sentence1,label\na,b\n",
            "The one column looks like several, with commas; a tsv separates them by tabs.",
        ),
        ("a.jsonl", "[1, 2]", "a.jsonl:1: expected a JSON object"),
        ("a.jsonl", "[" * 100_000, "a.jsonl:1: not JSON"),
        ("a.jsonl", '{"sentence1": 3, "label": "x"}', "a.jsonl:1: sentence1 must be a text; found 3"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": [], "label": "x"}', "a.jsonl:1: sentence2 must be a text"),
        ("a.jsonl", '{"sentence1": "a", "label": null}', "a.jsonl:1: the label must be a text or a number; found null"),
        ("a.jsonl", '{"sentence1": "a", "label": "\\ud800"}', "a.jsonl:1: the label is empty or not valid"),
        ("a.csv", "sentence1,label\na, \n", "a.csv:2: the label is empty"),
        ("a.csv", "sentence1,label\na,x\nb\n", "a.csv:3: 1 cells, but 2 columns"),
        ("a.csv", 'sentence1,label\na,x\n"b,x\n', "a.csv:3: not a table"),
        ("a.jsonl", b'{"sentence1": "a", "label": "x"}\n{"sentence1": "\xe9", "label": "x"}', "a.jsonl:2: not UTF-8"),
        (
            "a.jsonl",
            '{"sentence1": "a", "sentence2": "b", "label": "x"}\n{"sentence1": "a", "label": "x"}',
            "a.jsonl:2: rows before have a sentence2, this one has none",
        ),
    ],
)
def test_a_hostile_file_is_refused_with_its_line(tmp_path, name, content, message):
    with pytest.raises(DataError) as raised:
        rows_of(tmp_path, content, name)
    assert message in str(raised.value)


def test_true_of_jsonl_is_the_label_that_csv_has_as_text(tmp_path):
    ours = rows_of(tmp_path, '{"sentence1": "a", "label": true}\n{"sentence1": "b", "label": false}', "a.jsonl")
    table = rows_of(tmp_path, "sentence1,label\na,true\nb,false\n", "a.csv")
    assert [row.label for row in ours] == [row.label for row in table] == ["true", "false"]


@pytest.mark.parametrize("name", ["none.jsonl", "folder.csv", "rows.xlsx", "rows"])
def test_a_path_that_is_no_data_file_is_refused_before_any_row_is_read(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=r"\.jsonl, \.csv, \.tsv"):
        read_rows(tmp_path / name, labels=True)


@pytest.mark.parametrize("label", ["NaN", "Infinity", '"nan"', '"high"', '"1,5"', "1e999"])
def test_a_regression_label_that_is_no_finite_number_is_named_with_its_line(tmp_path, label):
    *_, row = rows_of(tmp_path, '{"sentence1": "a", "label": 1.5}\n{"sentence1": "a", "label": ' + label + "}")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: the label of a regression is a finite number"):
        Regression().expected(row)


def test_a_regression_label_is_its_number(tmp_path):
    rows = rows_of(tmp_path, '{"sentence1": "a", "label": 3.8}\n{"sentence1": "a", "label": "-2"}')
    assert [Regression().expected(row) for row in rows] == [3.8, -2.0]


def test_a_file_that_this_user_may_not_read_is_refused_at_once(tmp_path, monkeypatch):
    path = tmp_path / "data.jsonl"
    path.write_text('{"sentence1": "a"}\n')

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(UsageError, match=r"data\.jsonl cannot be read \(Permission denied\)"):
        read_rows(path, labels=False)


NAMED = Columns("review", "title", "stars")


def test_columns_may_have_other_names_and_what_is_neither_text_nor_task_is_kept(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,review,title,stars\n7,good,Soup,5\n")
    (row,) = read_rows(path, labels=True, columns=NAMED, keep=True)
    assert (row.sentence1, row.sentence2, row.label, row.others) == ("good", "Soup", "5", {"id": "7", "stars": "5"})
    with pytest.raises(
        DataError, match=r"no column titel\. Found columns: id, review, title, stars\. .*--pair-column NAME"
    ):
        list(read_rows(path, labels=False, columns=Columns("review", "titel")))


@pytest.mark.parametrize(
    "content",
    [
        '{"id": "7", "sentence1": "good"}\n{"id": "8", "sentence1": "bad"}\n',
        '[{"id": "7", "sentence1": "good"},\n {"id": "8", "sentence1": "bad"}]',
        "id,sentence1\n7,good\n8,bad\n",
        "\ufeffid\tsentence1\n7\tgood\n8\tbad\n",
    ],
)
def test_standard_input_is_read_in_any_format(monkeypatch, tmp_path, content):
    (tmp_path / "given").write_text(content)
    with (tmp_path / "given").open() as given:
        monkeypatch.setattr("sys.stdin", given)
        rows = list(read_rows(Path("-"), labels=False, keep=True))
    assert [(row.sentence1, row.line - rows[0].line, row.others["id"]) for row in rows] == [
        ("good", 0, "7"),
        ("bad", 1, "8"),
    ]


@pytest.mark.parametrize(
    ("content", "message"), [("[1]", ":1: expected a JSON object"), ("[{]", "not JSON"), ("3", ":1: exp")]
)
def test_a_json_file_that_is_no_array_of_objects_is_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path, content, "rows.json")


def test_parquet_gives_the_rows_of_its_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.table({"review": ["good", "bad"], "stars": [5, 1]}), tmp_path / "rows.parquet")
    rows = read_rows(tmp_path / "rows.parquet", labels=True, columns=Columns("review", None, "stars"))
    assert [(row.sentence1, row.label) for row in rows] == [("good", "5"), ("bad", "1")]
    with pytest.raises(DataError, match="not a parquet file"):
        rows_of(tmp_path, "no parquet", "broken.parquet")


def test_a_dataset_has_its_own_splits_and_the_names_of_its_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "y": datasets.ClassLabel(names=["ham", "spam"])})
    parts = {"train": [0, 1] * 10, "validation": [1, 0, 1], "test": [-1, -1]}
    split = {
        p: datasets.Dataset.from_dict({"text": [f"{p} {i}" for i in range(len(y))], "y": y}, features)
        for p, y in parts.items()
    }
    datasets.DatasetDict(split).save_to_disk(tmp_path / "saved")
    data = load_data(tmp_path / "saved", columns=Columns("text", None, "y"))
    assert data.labels == ("ham", "spam") and [row.label for row in data.eval] == ["spam", "ham", "spam"]
    assert len(data.test) == 2 and all(row.sentence1.startswith("train") for row in data.test)  # its own has no labels
    with pytest.raises(UsageError, match="has the splits train, validation, test; name one"):
        list(read_rows(tmp_path / "saved", labels=False))


@pytest.mark.parametrize(("name", "package"), [("rows.parquet", "pyarrow"), ("somebody/something", "datasets")])
def test_without_the_extra_one_line_says_which(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingPackage, match=rf"needs {package}: pip install 'edgepeft\[data\]'"):
        list(read_rows(Path(name), labels=False))

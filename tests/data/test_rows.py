"""Reading rows: what the three formats share, and every way in which a file can be wrong."""

import errno
import json
import sys
import warnings
from pathlib import Path

import pytest

from edgepeft.common import resources
from edgepeft.common.errors import DataError, MissingPackage, UsageError
from edgepeft.data import corpora, readers, tables
from edgepeft.data import rows as rows_module
from edgepeft.data.columns import Columns
from edgepeft.data.parts import load_data
from edgepeft.data.readers import splits_of
from edgepeft.data.rows import read_rows
from edgepeft.tasks.regression import Regression
from edgepeft.tasks.tokens import Tokens


def rows_of(tmp_path, content, name="rows.jsonl", labels=True, **more):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(path, labels=labels, **more))


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


def test_a_row_that_says_one_thing_twice_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"sentence1": "a", "label": "x", "label": "y"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: not JSON \(it has the key 'label' twice, with two values\)"):
        list(read_rows(path, labels=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "has no rows"),
        ("a.csv", "sentence1,label\n", "has no rows"),
        (
            "a.jsonl",
            '{"words_of_it": "a", "label": "x"}',
            "a.jsonl:1: no column sentence1. Found columns: words_of_it, label. Expected",
        ),
        ("a.csv", "sentence1,goal\na,b\n", "a.csv:2: no column label. Found columns: sentence1, goal."),
        ("a.csv", "review,planet\na,5\n", "a.csv:2: no column label. Found columns: review, planet. Expected"),
        (
            "a.csv",
            "text,score\na,\nb,85%\nc,90%\n",
            '--label-column NAME; score holds "85%", which is no number: write numbers',
        ),
        (
            "a.csv",
            "text;score\na;0,5\n",
            'score holds "0,5", which is no number: write a point for its comma, or nothing',
        ),
        (
            "a.csv",
            "line\na\nb\n",
            "no column sentence1 and no column label. Found columns: line. Expected: sentence1, optionally sentence2, and "
            "label; for others: --text-column NAME, --label-column NAME. The table has one column alone; a csv separates",
        ),
        ("a.csv", "text,content,label\na,b,c\n", "a.csv: text, content may each be the text; say which: --text-column"),
        ("a.csv", "Text,TEXT,label\na,b,c\n", "a.csv: Text, TEXT may each be the text; say which: --text-column NAME."),
        ("a.csv", "text,Labels,LABELS\na,b,c\n", "a.csv: Labels, LABELS may each be the label; say which: --label-col"),
        ("a.csv", "text,target,y\na,b,c\n", "a.csv: target, y may each be the label; say which: --label-column NAME."),
        ("a.csv", "text,premise,hypothesis,y\na,b,c,d\n", "a.csv: text, premise and hypothesis may each be the text"),
        ("a.csv", "sentence1,label,label\na,b,c\n", "a.csv:1: 2 columns are called 'label'; rename or delete"),
        ("a.jsonl", '{"sentence1": "a", "label": NaN}', "a.jsonl:1: the label is nan, which stands for a missing one"),
        ("a.jsonl", '{"sentence1": "a", "label": -Infinity}', "a.jsonl:1: the label is -inf, which stands"),
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
        ("a.csv", "sentence1,label\na,x\nb\n", "a.csv:3: 1 cell, but 2 columns"),
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
    with pytest.raises(UsageError, match=r"\.jsonl, \.ndjson, \.csv, \.tsv"):
        read_rows(tmp_path / name, labels=True)


@pytest.mark.parametrize("label", ["NaN", "Infinity", '"nan"', '"high"', '"1,5"', "1e999"])
def test_a_regression_label_that_is_no_finite_number_is_named_with_its_line(tmp_path, label):
    lines = '{"sentence1": "a", "label": 1.5}\n{"sentence1": "a", "label": ' + label + "}"
    message = "the label is (nan|inf), which" if label[0] != '"' else "the label of a regression is a finite number"
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: {message}"):
        Regression().expected(rows_of(tmp_path, lines)[-1])


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


def test_a_split_that_is_left_out_for_it_has_no_labels_is_said_once(tmp_path, recwarn):
    rows = "".join(f"w{i},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    (tmp_path / "test.csv").write_text("id,text\n1,w1\n")
    assert all(row.file.endswith("#train") for row in load_data(tmp_path).test)
    said = [str(each.message) for each in recwarn if "left out" in str(each.message)]
    assert said == [f"{tmp_path}#test: its first rows have no labels; it is left out."]


def test_a_folder_of_files_that_are_called_by_their_splits_is_a_dataset(tmp_path):
    """As a clone of a data set's repository has them; GLUE's test splits have -1 for a label."""
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "hub" / "README.md").write_text("about")
    sizes = {"train-00000-of-00002": 8, "train-00001-of-00002": 6, "validation-00000-of-00001": 4, "test": 3}
    for name, n in sizes.items():
        labels = ["-1" if name == "test" else ("no", "yes")[i % 2] for i in range(n)]
        lines = [json.dumps({"text": f"{name} {i}", "y": -1 if y == "-1" else y}) for i, y in enumerate(labels)]
        (tmp_path / "hub" / "data" / f"{name}.jsonl").write_text("\n".join(lines))
    data = load_data(tmp_path / "hub", columns=Columns("text", None, "y"))
    assert [row.sentence1 for row in data.eval] == [f"validation-00000-of-00001 {i}" for i in range(4)]
    assert len(data.train) + len(data.test) == 14 and not any(row.sentence1.startswith("test ") for row in data.test)
    assert {row.sentence1.split()[0] for row in (*data.train, *data.test)} == {*list(sizes)[:2]}
    (row, *_) = read_rows(Path(f"{tmp_path / 'hub'}#test"), labels=False)
    assert row.sentence1 == "test 0"
    (tmp_path / "hub").rename(named := tmp_path / "C# hub")
    again = load_data(named, columns=Columns("text", None, "y"))
    assert [row.sentence1 for row in again.eval] == [row.sentence1 for row in data.eval]
    assert next(read_rows(Path(f"{named}#test"), labels=False)).sentence1 == "test 0"


def test_splits_of_words_and_tags_have_no_column_of_labels_and_a_bad_row_is_named_by_its_file(tmp_path):
    (tmp_path / "test.ndjson").write_text('{"tokens": ["Ada"]}\n')  # without tags it is no part
    for name in ("train", "val"):
        row = json.dumps({"tokens": ["Ada", "came"], "ner_tags": ["B-PER", "O"]})
        (tmp_path / f"{name}.ndjson").write_text(f"{row}\n" * 3 + ("{\n" if name == "val" else ""))
    assert splits_of(tmp_path, "label") == {"train": Path(f"{tmp_path}#train"), "eval": Path(f"{tmp_path}#val")}
    with pytest.raises(DataError, match=r"val\.ndjson:4: not JSON"):
        list(read_rows(Path(f"{tmp_path}#val"), labels=False))


@pytest.mark.parametrize("column", ["label", "score"])
def test_a_split_is_without_labels_where_none_of_its_first_rows_has_one(tmp_path, column):
    for name, values in {"train": [-1, 0, 1], "eval": [None, -1, 1], "test": [-1, -1, None]}.items():
        rows = "".join(json.dumps({"text": f"{name} {value}", column: value}) + "\n" for value in values)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    assert [*splits_of(tmp_path, "label")] == ["eval", "train"]
    (tmp_path / "test.jsonl").unlink()
    (tmp_path / "test.csv").write_text(f"text,{column}\na,\nb,-1\n")
    assert [*splits_of(tmp_path, "label")] == ["eval", "train"]


@pytest.mark.parametrize(("name", "package"), [("rows.parquet", "pyarrow"), ("somebody/something", "datasets")])
def test_without_the_extra_one_line_says_which(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingPackage, match=rf"needs {package}: pip install 'edgepeft\[data\]'"):
        list(read_rows(Path(name), labels=False))


@pytest.mark.parametrize(
    ("header", "cells", "expected"),
    [
        ("text,label", "a,x", ("a", None, "x")),
        ("id,Review,Sentiment", "7,a,x", ("a", None, "x")),
        ("Category,Message", "x,a", ("a", None, "x")),
        ("text,labels,label", "a,y,x", ("a", None, "x")),  # the usual name goes first
        ("premise,hypothesis,label", "a,b,x", ("a", "b", "x")),
        ("id,question1,question2,target", "1,a,b,x", ("a", "b", "x")),
        ("sentence1,sentence2,class", "a,b,x", ("a", "b", "x")),
        ("sentence,label,idx", "a,x,3", ("a", None, "x")),
    ],
)
def test_columns_are_known_by_the_names_that_files_give_them_and_that_is_said(tmp_path, header, cells, expected):
    (tmp_path / "rows.csv").write_text(f"{header}\n{cells}\n")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        (row,) = read_rows(tmp_path / "rows.csv", labels=True)
    assert (row.sentence1, row.sentence2, row.label) == expected
    assert [str(note.message).endswith("--label-column name others.") for note in notes] == [True]


def test_an_option_goes_before_a_name_that_is_known(tmp_path):
    (tmp_path / "rows.csv").write_text("text,review,label,y\na,b,x,1\n")
    with pytest.warns(UserWarning, match="sentence1 is the column text"):
        with pytest.raises(DataError, match="text, review may each be the text"):
            list(read_rows(tmp_path / "rows.csv", labels=True))
        (tmp_path / "one.csv").write_text("text,label,y\na,x,1\n")
        (row,) = read_rows(tmp_path / "one.csv", labels=True, columns=Columns(label="y"))
    assert (row.sentence1, row.label) == ("a", "1")
    (row,) = read_rows(tmp_path / "rows.csv", labels=True, columns=Columns(text="review"))
    assert (row.sentence1, row.label) == ("b", "x")


@pytest.mark.parametrize(
    "content",
    [
        "sentence1;label\nhi, you;a\n",
        'sentence1;label;"How, then?"\nhi, you;a;so\n',
        "sep=;\nsentence1;label\nhi, you;a\n",
        "sentence1\tlabel\nhi, you\ta\n",
        "sentence1|label\nhi, you|a\n",
        'sentence1,label\r"hi, you",a\r',
        'sentence1,label\n"hi, you",a\n,\n\n,\n',
        '\n,,\nsentence1,label,\n"hi, you",a,\n',
        ";\n\nsentence1;label\nhi, you;a\n",
    ],
)
@pytest.mark.filterwarnings("ignore:.*cells are separated by")
def test_a_csv_is_read_as_spreadsheets_write_it(tmp_path, content):
    (tmp_path / "rows.csv").write_bytes(content.encode())
    (row,) = read_rows(tmp_path / "rows.csv", labels=True)
    assert (row.sentence1, row.label) == ("hi, you", "a")


def test_the_lines_of_an_old_mac_end_in_cr_and_nowhere_within_a_cell(tmp_path):
    (path := tmp_path / "rows.csv").write_bytes("sentence1,label\rhi\x0byou\u2028there\x85,a\r".encode())
    (row,) = read_rows(path, labels=True)
    assert (row.sentence1, row.label, row.line) == ("hi\x0byou\u2028there\x85", "a", 2)


@pytest.mark.parametrize("cell", ["['a', 'b c']", '["a", "b c"]', "a, b c"])
def test_a_cell_of_several_labels_may_be_a_list(cell):
    assert Columns(separator=",").listed(cell) == ["a", "b c"]


@pytest.mark.filterwarnings("ignore:.*counts the words")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# text = x\n10\u00a0000\tO\nin Oslo\tB-LOC\n", ["10\u00a0000", "in Oslo"]),
        ("# a b\n1 x O\n\n1 in O\n2 Oslo B-LOC\n", ["in", "Oslo"]),
        ("0\tin\tO\n1\tOslo\tB-LOC\n\n0\tin\tO\n1\tOslo\tB-LOC\n", ["in", "Oslo"]),
        ("1 O\n2 O\n", ["1", "2"]),  # numbers, for there is no other column of words
        ("in 1 O\nOslo 2 B-LOC\n# 3 O\n", ["in", "Oslo", "#"]),  # no comment within a sentence
    ],
)
def test_conll_has_comments_counts_and_words_with_blanks(tmp_path, content, expected):
    path = tmp_path / "rows.conll"
    path.write_text(content)
    *_, last = read_rows(path, labels=False)
    assert [last.sentence1[start:end] for start, end in last.sentence1.spans] == expected


@pytest.mark.parametrize("name", ["rows.bio", "rows.txt"])
def test_tags_before_their_words_are_no_words(tmp_path, name):
    """As MIT's movies have them."""
    (path := tmp_path / name).write_text("O\thi\n\nO\tby\nB-ACTOR\tBruce\nI-ACTOR\tWillis\n")
    with pytest.warns(UserWarning, match="the first column has the tags"):
        _, row = read_rows(path, labels=True, label_of=Tokens.label_text)
    assert row.sentence1 == "by Bruce Willis" and json.loads(row.label) == {"tags": ["O", "B-ACTOR", "I-ACTOR"]}
    path.write_text("B-52\tB-PLANE\nE-mail\tO\n")
    (row,) = read_rows(path, labels=True, label_of=Tokens.label_text)
    assert row.sentence1 == "B-52 E-mail"


@pytest.mark.filterwarnings("ignore:.*name others")
@pytest.mark.parametrize(
    ("columns", "record"),
    [
        (Columns(), {"tokens": ["in", "Oslo"], "ner_tags": ["O", "B-LOC"]}),
        (Columns(), {"tokens": ["in", "Oslo"], "tags": ["O", "B-LOC"], "pos_tags": ["IN", "NNP"]}),
        (Columns("tokens", None, "ner_tags"), {"tokens": ["in", "Oslo"], "ner_tags": ["O", "B-LOC"], "pos_tags": []}),
        (Columns(label="ner_tags"), {"words": ["in", "Oslo"], "ner_tags": ["O", "B-LOC"]}),
    ],
)
def test_tokens_and_their_tags_are_read_by_the_names_that_the_hub_gives_them(tmp_path, columns, record):
    (tmp_path / "rows.jsonl").write_text(json.dumps(record))
    (row,) = read_rows(tmp_path / "rows.jsonl", labels=True, columns=columns, label_of=Tokens.label_text)
    assert row.sentence1 == "in Oslo" and json.loads(row.label) == {"tags": ["O", "B-LOC"]}


def test_tags_of_several_kinds_are_refused_with_the_choice(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"tokens": ["a"], "ner_tags": ["O"], "pos_tags": ["DT"]}))
    with pytest.raises(DataError, match="ner_tags, pos_tags may each be the tags; say which: --label-column NAME"):
        list(read_rows(tmp_path / "rows.jsonl", labels=True, label_of=Tokens.label_text))


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("a.json", "[" + ",".join(["[]"] * 40) + "]", r"more than \d+ lists and objects"),
        ("a.jsonl", '{"more": [' + ",".join(["{}"] * 40) + "]}", r"more than \d+ lists and objects"),
        ("a.csv", "a" + "," * 30, "more than 20 cells in a line"),
        ("a.csv", 'sentence1,label\n"' + "," * 30 + '",a', "more than 20 cells in a line"),
        ("a.conll", "word O\n" * 30, "a row of more than 20 words"),
    ],
)
def test_the_parts_of_a_row_are_counted_before_it_is_made(tmp_path, monkeypatch, name, content, refused):
    for module, bound in ((resources, "_MAX_PARTS"), (tables, "_MAX_CELLS"), (corpora, "_MAX_WORDS")):
        monkeypatch.setattr(module, bound, 20)
    (path := tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=refused):
        for _, row in readers.format_of(path)(path):
            if isinstance(row, DataError):
                raise row


def test_a_file_of_something_else_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "_MAX_BAD", 10)
    (path := tmp_path / "a.jsonl").write_text("[]\n" * 30 + '{"sentence1": "a", "label": "b"}\n')
    told = []
    with pytest.raises(DataError, match=":11: expected a JSON object"):
        list(read_rows(path, labels=True, bad=lambda line, *_: told.append(line)))
    assert told == [*range(1, 11)]
    path.write_text('{"sentence1": "a", "label": "b"}\n' + "[]\n" * 30)
    told.clear()
    assert len(list(read_rows(path, labels=True, bad=lambda line, *_: told.append(line)))) == 1 and len(told) == 30


@pytest.mark.parametrize("names", [("label",), ("x", None, "x"), ("text", "x", "x")])
def test_a_text_is_not_its_own_label(names, tmp_path):
    with pytest.raises(UsageError, match="is read as a text and as its label; name another, --label-column NAME"):
        rows_of(tmp_path, '{"text": "a", "x": "b", "label": "c"}', columns=Columns(*names))

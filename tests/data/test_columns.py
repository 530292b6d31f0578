"""What is said where columns are not found: what the file has in their place."""

import json

import pytest

from edgepeft.common.errors import DataError
from edgepeft.data.columns import Columns, column_names, label_text
from edgepeft.data.pattern import pattern
from edgepeft.data.readers import splits_of
from edgepeft.data.rows import read_rows


def test_a_table_without_names_of_columns_is_said_to_need_them(tmp_path):
    (path := tmp_path / "rows.csv").write_text("4,The soup was cold again.\n" * 3)
    with pytest.raises(
        DataError, match="If the first line is a row, and no names of columns, put a line of names above it"
    ):
        [*read_rows(path, labels=True)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            '{"data": {"text": "hi", "lang": "en"}, "label": "a"}\n',
            "no column sentence1. Found columns: data.text, data.lang, label. Expected",
        ),
        (
            "a.csv",
            "id,date,text,sport,news\n1,2024-01-02,hi,0,1\n7,2024-01-02,ho,1,\n",
            "If sport, news are labels: such columns are read where .* no option names a column. Take date out.",
        ),
        ("a.csv", "text,sport,news\nhi,0,\nho,1,1\n", "Found columns: text, sport, news"),
    ],
)
def test_columns_that_are_not_read_are_told_of(tmp_path, name, content, said):
    (path := tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        [*read_rows(path, labels=True)]


def test_what_is_said_is_the_same_of_each_row(tmp_path):
    """Errors are grouped by what they say."""
    rows = "".join(f"2024-01-0{i},hi,{i % 2},{i % 3 % 2},{i % 4}\n" for i in range(1, 9))
    (path := tmp_path / "a.csv").write_text(f"date,text,sport,news,n\n{rows}")
    found = []
    assert not [*read_rows(path, labels=True, bad=lambda line, _, error: found.append(str(error).split(": ", 1)[1]))]
    assert len(found) == 8 and len({*found}) == 1 and "If sport, news are labels" in found[0]
    path.write_text("text,score\n" + "".join(f"hi,{i}%\n" for i in range(8)))
    found.clear()
    assert not [*read_rows(path, labels=True, bad=lambda line, _, error: found.append(str(error).split(": ", 1)[1]))]
    assert len(found) == 8 and len({*found}) == 1 and "which is no number: write numbers alone" in found[0]


NESTED = {"review": {"text": "Cold soup.", "by": {"task": "food"}}, "label": {"name": "bad"}}


def read(tmp_path, *rows, **columns):
    (path := tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [*read_rows(path, labels=True, columns=Columns(**columns), task_column="review.by.task")]


def test_a_column_within_columns_is_named_with_dots(tmp_path):
    (row,) = read(tmp_path, NESTED, text="review.text", label="label.name")
    assert (row.sentence1, row.label, row.task) == ("Cold soup.", "bad", "food")


def test_a_name_with_a_dot_is_not_gone_into_and_our_own_mappings_are_no_columns(tmp_path):
    assert column_names({"a.b": {"c": 1}, "d": {"e": 1}}) == ["a.b", "d.e"]
    with pytest.raises(DataError, match=r'must be a text or a number; found \{"spans": \[\]\}\.$'):
        label_text({"spans": []}, "a:1")


@pytest.mark.parametrize(("cells", "parts"), [(("x", "y"), {"train", "test"}), (("x", -1), {"train"})])
def test_a_split_without_labels_within_columns_is_left_out(tmp_path, cells, parts):
    for name, cell in zip(("train", "test"), cells, strict=True):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "a", "meta": {"cls": cell}}) + "\n")
    assert {*splits_of(tmp_path, "meta.cls")} == parts


def test_a_pattern_reads_a_column_within_columns():
    assert pattern("say {review.text}").filled(NESTED, "a:1") == "say Cold soup."
    with pytest.raises(DataError, match=r"a:1: no column review\.by\.name, which"):
        pattern("{review.by.name}").filled(NESTED, "a:1")


def test_a_column_that_has_the_very_name_is_the_one_that_is_read(tmp_path):
    (row,) = read(tmp_path, {**NESTED, "review.text": "Hot."}, text="review.text", label="label.name")
    assert row.sentence1 == "Hot."


@pytest.mark.parametrize(
    ("text", "label", "said"),
    [
        (
            "review.txt",
            "label.name",
            r"a.jsonl:1: no column review\.txt. Found columns: review\.text, review\.by\.task, l",
        ),
        ("review.text.x", "label.name", r"no column review\.text\.x\. Found"),
        ("review", "label.name", r"no column review\. Found columns: review\.text"),
        (
            "review.text",
            None,
            r'must be a text or a number; found \{"name": "bad"\}. A column .* with a dot: label\.name',
        ),
    ],
)
def test_a_dotted_name_that_leads_to_no_cell_is_told_those_that_are_there(tmp_path, text, label, said):
    with pytest.raises(DataError, match=said):
        read(tmp_path, NESTED, text=text, label=label)

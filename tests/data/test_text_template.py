"""How options pose a task as text: what goes together, what is read of files, and what is written of labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.data.columns import Columns
from edgepeft.data.parts import load_data
from edgepeft.data.rows import read_rows
from edgepeft.data.text_template import AS_IT_IS, text_template


def file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(**options: Any) -> Any:
    return text_template(**{"fields": {}} | options)


REFUSED = [
    ({"format": "glue:mrpc", "source": "{a}"}, "leave --source and --target out"),
    ({"target": "{a}"}, "say what is read too"),
    ({"kind": "text"}, "say what is read too"),
    ({"fields": {"a": "b"}}, "say what is read too"),
    ({"kind": "text", "source": "{a}"}, "say what is written too"),
    ({"format": "squad", "kind": "labels"}, "the answers of squad are no labels"),
    ({"source": "{a}", "fields": {"b": "c"}}, "no field of the source is called 'b'"),
    ({"format": "glue:mprc"}, "Did you mean 'glue:mrpc'"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        asked(**options)


def test_nothing_asked_leaves_texts_as_they_are():
    columns = Columns("review", None, "stars")
    assert asked() == AS_IT_IS
    assert asked().columns(columns) == columns


def test_rows_become_text_of_the_columns_that_fields_name(tmp_path: Path):
    path = file(
        tmp_path,
        {"sentence1": "It rains.", "sentence2": "Dry.", "label": 2},
        {"sentence1": "a", "sentence2": "b", "label": "neutral"},
    )
    posed = asked(format="glue:mnli", fields={"premise": "sentence1", "hypothesis": "sentence2"})
    rows = list(read_rows(path, labels=True, columns=posed.columns(Columns())))
    assert [row.sentence1 for row in rows] == [
        "mnli hypothesis: Dry. premise: It rains.",
        "mnli hypothesis: b premise: a",
    ]
    assert [(row.sentence2, row.label) for row in rows] == [(None, "2"), (None, "neutral")]


def test_a_column_that_is_not_there_is_told_with_the_option_that_names_another(tmp_path: Path):
    path, posed = file(tmp_path, {"sentence1": "a", "label": "0"}), asked(format="glue:sst2")
    with pytest.raises(
        DataError,
        match=r"no column sentence\. Found columns: sentence1, label\. Expected: sentence, label; .*--field FIELD=COLUMN",
    ):
        list(read_rows(path, labels=True, columns=posed.columns(Columns())))
    with pytest.raises(UsageError, match="--text-column and --pair-column are of texts"):
        posed.columns(Columns("sentence1"))


def many(n: int = 40) -> list[dict[str, Any]]:
    return [{"sentence": f"text {i}", "label": i % 2} for i in range(n)]


def test_labels_keep_their_names_and_have_the_formats_words(tmp_path: Path):
    posed = asked(format="glue:sst2")
    data = posed.applied(load_data(file(tmp_path, *many()), columns=posed.columns(Columns())))
    assert (data.labels, data.targets, data.task_kind.writes) == (("0", "1"), ("negative", "positive"), False)
    assert (data.source, data.target) == ("sst2 sentence: {sentence}", None)
    assert data.train[0].sentence1.startswith("sst2 sentence: text ")


def test_what_is_written_of_a_label_may_be_a_pattern_of_ones_own(tmp_path: Path):
    posed = asked(source="{sentence}", target="it is {label}", kind="labels")
    data = load_data(file(tmp_path, *many()), columns=posed.columns(Columns()))
    assert posed.applied(data).targets == ("it is 0", "it is 1")
    with pytest.raises(UsageError, match=r"it reads \{stars\} alone"):
        posed.applied(data, "stars")


def test_a_label_that_no_target_has_is_refused(tmp_path: Path):
    posed = asked(format="glue:sst2")
    rows = [{**row, "label": f"mood {row['label']}"} for row in many()]
    with pytest.raises(DataError, match="no target of glue:sst2 has the label 'mood 0'"):
        posed.applied(load_data(file(tmp_path, *rows), columns=posed.columns(Columns())))


def test_free_targets_are_no_labels_and_each_answer_may_be_a_row(tmp_path: Path):
    rows = [{"query": f"q{i}", "entities": ["A", "B"], "passage": f"p{i}", "answers": ["A", "B"]} for i in range(20)]
    path = file(tmp_path, *rows)
    sizes = {}
    for name in ("superglue:record", "compacter:superglue-record"):
        posed = asked(format=name)
        data = posed.applied(load_data(path, columns=posed.columns(Columns())))
        assert (data.labels, data.task_kind.writes, data.train[0].references) == (None, True, ("A", "B"))
        sizes[name] = [len(part) for part in (data.train, data.eval, data.test)]
    assert sizes == {"superglue:record": [32, 2, 2], "compacter:superglue-record": [32, 4, 4]}


@pytest.mark.parametrize("empty", ["", "  ", None])
def test_an_empty_target_is_refused_by_its_line(tmp_path: Path, empty: Any):
    posed = asked(source="sum: {text}", target="{summary}")
    path = file(tmp_path, {"text": "a", "summary": "b"}, {"text": "c", "summary": empty})
    with pytest.raises(DataError, match=r"rows.jsonl:2: (the target is empty|summary must be a text)"):
        list(read_rows(path, labels=True, columns=posed.columns(Columns())))


def test_a_field_of_the_target_may_be_renamed_too(tmp_path: Path):
    posed = asked(format="squad", fields={"answers": "gold"})
    path = file(tmp_path, {"question": "q", "context": "c", "gold": {"text": ["x.", "y"]}})
    (row,) = read_rows(path, labels=True, columns=posed.columns(Columns()))
    assert (row.label, row.references) == ("x .", ("x .", "y"))


def test_an_unknown_cleaning_is_refused_before_files_are_read():
    with pytest.raises(UnknownName, match="Did you mean 'spaced'"):
        asked(source="{a:space}")


def test_labels_that_are_numbers_are_rounded_and_one_beyond_them_is_refused(tmp_path: Path):
    posed = asked(format="glue:stsb")
    rows = [{"sentence1": f"a {i}", "sentence2": "b", "label": i % 6 - 0.05 * (i % 6 == 5)} for i in range(60)]
    columns = posed.columns(Columns())
    data = posed.applied(load_data(file(tmp_path, *rows), columns=columns, labels=posed.format.names))
    assert (len(data.labels), data.step, data.targets == data.labels) == (26, 0.2, True)
    assert {row.label for row in data.train} == {"0.0", "1.0", "2.0", "3.0", "4.0", "5.0"}
    with pytest.raises(DataError, match=r"has no label '7\.0'"):
        load_data(file(tmp_path, *rows, {**rows[0], "label": 7}), columns=columns, labels=posed.format.names)

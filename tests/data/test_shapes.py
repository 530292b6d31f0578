"""Shapes of rows: docs/data.md's own files, and the published form of data sets, from the file to an answer."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import re
import warnings
import zipfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgepeft.common.errors import DataError, EdgepeftError, UsageError
from edgepeft.data.columns import HEAD, Columns, parse_cell
from edgepeft.data.parts import load_data
from edgepeft.data.pattern import pattern
from edgepeft.data.readers import Records, head_of, source_of
from edgepeft.data.rows import read_rows
from edgepeft.data.shapes import recognised_shape
from edgepeft.tasks.base import kind_named

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
FILES = {
    name: (kind, re.sub(r"^    ", "", block, flags=re.M))
    for name, kind, block in re.findall(r"^`(\S+)`, (\w+)\n\n((?:    .*\n)+)", PAGE, re.M)
}
WORDS = ("good", "bad", "film", "soup", "cold", "warm", "day", "night", "rain", "sun", "car", "tree")
TEXTS = [" ".join(WORDS[(7 * i + j * (i + 3)) % 12] for j in range(6)) for i in range(60)]
MOODS = ["good" if i % 2 else "bad" for i in range(60)]


def of_kind(path, kind, labels=True):
    asked = kind_named(kind)
    return [
        *read_rows(
            path,
            labels=labels,
            columns=asked.columns(Columns()),
            label_of=asked.label_text,
            optional=asked.optional_labels,
        )
    ]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_each_file_of_the_page_is_told_as_the_page_says_and_read(tmp_path, name):
    kind, content = FILES[name]
    (path := tmp_path / name).write_text(content)
    shape = recognised_shape(path, head_of(path))
    assert (shape.kind if shape else "classification") == kind
    if kind == "text":
        assert shape.source and shape.target
        return
    rows = of_kind(path, kind)
    assert len(rows) >= 1 and all(row.sentence1.strip() for row in rows)
    assert [row[:2] for row in of_kind(path, kind, labels=False)] == [row[:2] for row in rows]


def test_the_page_has_the_thirteen_shapes_of_the_readme():
    assert len(FILES) >= 13 and {kind for kind, _ in FILES.values()} == {
        *("classification", "regression", "labels", "tokens", "choice", "spans", "embedding", "text"),
    }


def annotated(*values):
    return {"id": 7, "data": {"text": "a"}, "annotations": [{"result": [{"value": value} for value in values]}]}


READ = {
    "title": ({"title": "A", "body": "b c", "class": "x"}, ("A\nb c", None, "x")),
    "number": ({"sentence1": "a", "sentence2": "b", "score": 2.5}, ("a", "b", "2.5")),
    "names": ({"Text": "a", "labels": ["y", "x"]}, ("a", None, '["x","y"]')),
    "columns": ({"comment_text": "a", "p": 1, "q": 0, "r": 1}, ("a", None, '["p","r"]')),
    "key": ({"question": "a", "choices": {"text": ["b", "c"], "label": ["1", "2"]}, "answerKey": "2"}, ("a", None, "1")),
    "stem": (
        {"question": {"stem": "a", "choices": [{"label": "A", "text": "b"}, {"label": "B", "text": "c"}]}, "answerKey": "B"},
        ("a", None, "1"),
    ),
    "letter": ({"question": "a", "choices": ["b", "c", "d"], "answer": "C"}, ("a", None, "2")),
    "race": ({"article": "t", "question": "a", "options": ["b", "c", "d"], "answer": "B"}, ("t", "a", "1")),
    "truth": ({"text": "a", "p": True, "q": False, "user_id": "u7"}, ("a", None, '["p"]')),
    "picked": (
        {"text": "a", "options": [{"id": "p"}, {"id": "q"}], "accept": ["q"], "answer": "accept"},
        ("a", None, "q"),
    ),
    "index": ({"question": "a", "choices": ["b", "c", "d"], "answer": 2}, ("a", None, "2")),
    "numbers": ({"sentence1": "a", "choices": [3, 4], "label": "4"}, ("a", None, '"4"')),
    "boolq": (
        {"question": "a", "passage": "b", "title": "t", "answer": True, "idx": 3},
        ("a", "b", "true"),
    ),
    "qqp": ({"id": "1", "question1": "a", "question2": "b", "is_duplicate": "0"}, ("a", "b", "0")),
    "mnli": ({"index": "0", "sentence1": "a", "sentence2": "b", "label1": "x", "gold_label": "y"}, ("a", "b", "y")),
    "copa": ({"premise": "a", "question": "cause", "choice1": "b", "choice2": "c", "label": 1}, ("a", "cause", "1")),
    "swag": (
        {"sent1": "a", "sent2": "b", "ending1": "d", "ending0": "c", "label": "1", "gold-source": "g"},
        ("a", "b", '"1"'),
    ),
    "case": (
        {"Question": "a", "Context": "the b", "Answers": {"text": ["b"], "answer_start": [4]}},
        ("a", "the b", '[[4,"b"]]'),
    ),
    "pair": ({"anchor": "a", "positive": "b", "negative": "c"}, ("a", "b", None)),
    "flag-embedding": ({"query": "a", "pos": ["b", "d"], "neg": ["c"]}, ("a", "b", None)),
    "label-studio-choice": (annotated({"choices": ["x"]}), ("a", None, "x")),
    "label-studio-choices": (annotated({"choices": ["y", "x"]}), ("a", None, '["x","y"]')),
    "negation": ({"query": "a", "pos": ["b"], "negation": True}, ("a", "b", None)),
    "label-studio-stars": (annotated({"rating": 4}), ("a", None, "4")),
    "label-studio-number": (annotated({"number": 2.5}), ("a", None, "2.5")),
    "label-studio-min-choices": ({"text": "a", "id": 7, "sentiment": {"choices": ["y", "x"]}}, ("a", None, '["x","y"]')),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", READ)
def test_a_row_is_what_its_columns_say(tmp_path, name):
    record, (first, second, label) = READ[name]
    path = jsonl(tmp_path / "rows.jsonl", [record])
    shape = recognised_shape(path, head_of(path))
    (row,) = of_kind(path, shape.kind if shape else "classification")
    assert (row.sentence1, row.sentence2, row.label) == (first, second, label)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_choice_of_label_studio_is_a_text_beside_rows_of_several(tmp_path):
    rows = [{"text": "a", "sentiment": "x"}, {"text": "b", "sentiment": {"choices": ["x", "y"]}}]
    (table := tmp_path / "rows.csv").write_text('text,sentiment\na,x\nb,"{""choices"": [""x"", ""y""]}"\n')
    for path in (jsonl(tmp_path / "rows.jsonl", rows), table):
        assert recognised_shape(path, head_of(path)).kind == "labels"
        assert [row.label for row in of_kind(path, "labels")] == ['["x"]', '["x","y"]']


def test_what_is_left_of_label_studios_annotations_is_said(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [annotated({"start": 0, "end": 1, "labels": ["P"]}, {"choices": ["x"]})])
    with pytest.warns(UserWarning, match="of which only labels are read; --kind tokens"):
        recognised_shape(path, head_of(path))


def test_a_list_of_one_name_in_each_row_may_be_asked_for_as_classes(tmp_path):
    """doccano exports a class as a list."""
    path = jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": ["x"]}, {"text": "b", "label": ["y"]}])
    with pytest.warns(UserWarning, match=r"one name in each row \(--kind classification .* --kind labels is taken"):
        recognised_shape(path, head_of(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [row.label for row in of_kind(path, "classification")] == ["x", "y"]


@pytest.mark.parametrize(
    ("row", "source", "target"),
    [
        ({"instruction": "a", "context": "b", "response": "c"}, "{instruction} {context}", "{response}"),
        ({"prompt": "a", "completion": "b"}, "{prompt}", "{completion}"),
        ({"instruction": "a", "input": "b", "output": "c"}, "{instruction} {input}", "{output}"),
        (
            {"instruction": "a", "context": "b", "response": "c", "category": "d"},
            "{instruction} {context}",
            "{response}",
        ),
        ({"instruction": "a", "input": "b", "response": "c"}, "{instruction} {input}", "{response}"),
        ({"instruction": "a", "context": "b", "output": "c"}, "{instruction} {context}", "{output}"),
    ],
    ids=["dolly", "openai", "alpaca", "dolly-category", "input-response", "context-output"],
)
def test_what_is_asked_and_answered_is_text_to_write(tmp_path, row, source, target):
    path = jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.warns(UserWarning, match="--kind text is taken"):
        shape = recognised_shape(path, head_of(path))
    assert (shape.source, shape.target) == (source, target)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("answered", [{"prompt": "p", "completion": "c"}, {"instruction": "i", "response": "r"}])
@pytest.mark.parametrize("texts", [("text",), ("premise", "hypothesis")])
def test_a_text_with_its_label_is_classified_whatever_was_asked_beside_it(tmp_path, texts, answered):
    path = jsonl(tmp_path / "rows.jsonl", [{**dict.fromkeys(texts, "a"), "label": "x", **answered}])
    assert recognised_shape(path, head_of(path)) is None
    assert [row.label for row in of_kind(path, "classification")] == ["x"]


def test_completions_that_a_label_calls_good_or_bad_are_refused():
    """TRL's rows for KTO."""
    rows = Records([{"prompt": "p", "completion": f"c{i}", "label": i % 2 == 0} for i in range(8)])
    assert recognised_shape(rows, head_of(rows)) is None
    with pytest.raises(DataError, match="If label says which completions are good: keep those rows alone"):
        load_data(rows)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ({"query": "q", "pos": ["b", "c"]}, {"query": "r"}, None),
        ({"question": "q", "choices": ["b", "c"], "answer": "B"}, {"question": "r"}, "1"),
        ({"text": "q", "options": [], "accept": ["y"], "answer": "accept"}, {"text": "r", "answer": "accept"}, "y"),
    ],
)
def test_a_row_without_a_column_takes_no_other_rows_shape_away(tmp_path, first, second, wanted):
    path = jsonl(tmp_path / "rows.jsonl", [first, second])
    shape = recognised_shape(path, head_of(path))
    bad, asked = [], kind_named(shape.kind)
    given = {"labels": wanted is not None, "columns": asked.columns(Columns()), "label_of": asked.label_text}
    (row,) = read_rows(path, bad=lambda line, *_: bad.append(line), **given)
    assert (row.label, bad) == (wanted, [2])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_finished_annotation_without_a_choice_is_a_row_of_no_labels(tmp_path):
    none = {**annotated(), "annotations": []}
    path = jsonl(tmp_path / "rows.jsonl", [annotated({"choices": ["y", "x"]}), annotated(), none])
    bad, asked = [], kind_named("labels")
    given = {"columns": asked.columns(Columns()), "label_of": asked.label_text}
    rows = read_rows(path, labels=True, bad=lambda line, *_: bad.append(line), **given)
    assert ([row.label for row in rows], bad) == (['["x","y"]', "[]"], [3])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_first_row_with_columns_in_its_text_costs_that_row_alone(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"text": {"de": "x"}, "label": "x"}, {"text": "a", "label": "y"}])
    bad = []
    assert [row.label for row in read_rows(path, labels=True, bad=lambda line, *_: bad.append(line))] == ["y"]
    assert bad == [1]


MARKS = [
    {"text": "Ada came.", "entities": [[0, 3, "PER"]]},
    {"text": "Ada came.", "label": [[0, 3, "PER"]]},
    {"text": "Ada came.", "spans": [{"start": 0, "end": 3, "label": "PER", "token_start": 0}]},
    {"text": "Ada came.", "tokens": [{"text": "Ada", "id": 0}], "spans": [{"start": 0, "end": 3, "label": "PER"}], "answer": "accept"},
    {"id": 1, "text": "Ada came.", "label": [{"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}], "annotator": 1},
    {"id": 1, "data": "Ada came.", "label": [[0, 3, "PER"]]},
    {"id": 1, "text": "Ada came.", "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}], "relations": []},
    {"id": 1, "data": {"text": "Ada came."}, "annotations": [
        {"was_cancelled": True, "result": []},
        {"result": [{"type": "labels", "value": {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}}]},
    ]},
]  # fmt: skip


MARKED = ["spacy", "doccano", "prodigy", "prodigy-tokens", "label-studio-min", "doccano-data", "doccano-relations", "label-studio"]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("record", MARKS, ids=MARKED)
def test_marks_in_a_text_are_spans_whatever_tool_exports_them(tmp_path, record):
    nothing = {"entities": [], "label": [], "spans": [], "annotations": [{"result": []}]}
    empty = {**record, **{name: found for name, found in nothing.items() if name in record}}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([empty, record]))  # the first row has none
    shape = recognised_shape(path, head_of(path))
    assert shape.kind == "tokens"
    first, second = (json.loads(row.label)["spans"] for row in of_kind(path, "tokens"))
    assert (first, second) == ([], [[0, 3, "PER"]])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_span_that_says_another_text_than_stands_there_is_refused(tmp_path):
    """Label Studio has counted an emoji as two characters, and writes a line's end as two."""
    path, mark = tmp_path / "rows.json", {"start": 2, "end": 10, "text": "Ada\\nLove", "labels": ["PER"]}
    path.write_text(json.dumps([{"text": "\U0001f600 Ada\nLove came.", "label": [mark]}]))
    (row,) = of_kind(path, "tokens")
    assert json.loads(row.label) == {"spans": [[2, 10, "PER"]]}
    path.write_text(
        json.dumps([{"text": "\U0001f600 Ada came.", "label": [{**mark, "start": 3, "end": 6, "text": "Ada"}]}])
    )
    with pytest.raises(
        DataError, match=r'rows.json:1: the span 3 to 6 says "Ada", and "da " stands there; that stands at 2'
    ):
        of_kind(path, "tokens")


def test_squad_as_it_is_published_has_a_row_for_each_question(tmp_path):
    (path := tmp_path / "squad.json").write_text(FILES["squad.json"][1])
    rows = of_kind(path, "spans")
    assert [(row.sentence1, row.sentence2) for row in rows] == [
        ("How was the soup?", "The soup was cold and thick."),
        ("Who made it?", "The soup was cold and thick."),
    ]
    assert "cold" in rows[0].label and "cold" not in rows[1].label


@pytest.mark.parametrize(
    ("values", "asked"),
    [([0.5, 1.0, 1.5], True), (range(30), True), ([1, 2, 3, 4, 5], False), (["1", "2", "x"], False)],
)
def test_labels_that_are_numbers_are_asked_about_and_a_few_whole_ones_are_names(tmp_path, values, asked):
    path = jsonl(tmp_path / "rows.jsonl", [{"sentence1": "a", "label": value} for value in values])
    if not asked:
        assert recognised_shape(path, head_of(path)) is None
        return
    with pytest.raises(UsageError, match=r"label holds numbers .* --kind regression .* --kind classification"):
        recognised_shape(path, head_of(path))


def test_a_column_that_an_option_names_is_asked_about_too(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"review": "a", "stars": 1.5, "Label": "x"}] * 3)
    with pytest.raises(UsageError, match="stars holds numbers"):
        recognised_shape(path, head_of(path), (None, None, "stars"))
    assert recognised_shape(path, head_of(path), ("review", None, None)) is None


def test_two_columns_that_fit_are_refused_with_the_option_that_chooses(tmp_path):
    for record, message in (
        ({"tokens": ["a"], "ner_tags": ["O"], "pos_tags": ["N"]}, "ner_tags, pos_tags may each be the tags"),
        ({"text": "a", "score": 1.5, "rating": 2.5}, "score, rating may each be the number"),
    ):
        path = jsonl(tmp_path / "rows.jsonl", [record])
        with pytest.raises(DataError, match=message):
            recognised_shape(path, head_of(path))


def test_a_column_of_0_and_1_that_later_holds_another_is_refused(tmp_path):
    rows = [{"text": "a", "p": i % 2, "q": 1 - i % 2} for i in range(101)]
    path = jsonl(tmp_path / "rows.jsonl", [*rows, {"text": "a", "p": 2, "q": 0}])
    with pytest.raises(DataError, match=r'the label is a list of names.*found \{"p": 2\}'):
        of_kind(path, "labels")


@pytest.mark.parametrize("index", ["__index_level_0__", "Unnamed: 0.1", "Unnamed: 0", "row_id", ""])
def test_the_index_that_pandas_keeps_is_no_label_beside_columns_of_0_and_1(index):
    """Shuffled rows have one, which to_parquet keeps; a csv that pandas read and wrote twice has Unnamed: 0.1 too."""
    rows = [{"text": "a", index: 60 - i, "p": i % 2, "q": 1} for i in range(60)]
    assert "0 and 1 for each of p, q" in recognised_shape(Records(rows), rows).description


CELLS = {
    "tokens": ("tokens,ner_tags\n\"['Ada', 'came']\",\"['B-PER', 'O']\"\n", "Ada came", '{"tags":["B-PER","O"]}'),
    "choice": ("question,choices,answer\na,\"['b', 'c']\",1\n", "a", '"1"'),
    "labels": ('text,labels\na,"[""y"", ""x""]"\n', "a", '["x","y"]'),
    "spans": (
        "question,context,answers\na,the b,\"{'text': ['b'], 'answer_start': [4]}\"\n",
        "a",
        '[[4,"b"]]',
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", CELLS)
def test_lists_in_a_tables_cells_are_read_as_json_and_pandas_write_them(tmp_path, kind):
    content, text, label = CELLS[kind]
    (path := tmp_path / "rows.csv").write_text(content)
    assert recognised_shape(path, head_of(path)).kind == kind
    (row,) = of_kind(path, kind)
    assert (str(row.sentence1), json.loads(row.label)) == (text, json.loads(label))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_arrays_and_numbers_of_numpy_in_memory_are_lists_and_numbers(tmp_path):
    rows = [
        {"text": np.str_("a"), "labels": np.array(["x", "y"], object)},
        {"text": "b", "labels": np.array([], object)},
        {"text": "c", "labels": {"y", "x"}},
    ]
    assert [row.label for row in of_kind(Records(rows), "labels")] == ['["x","y"]', "[]", '["x","y"]']
    answers = {"text": np.array(["b"], object), "answer_start": np.array([4])}
    (row,) = of_kind(Records([{"question": "a", "context": "the b", "answers": answers}]), "spans")
    assert json.loads(row.label) == [[4, "b"]]
    (row,) = of_kind(Records([{"text": "a", "label": np.int64(1)}]), "classification")
    assert row.label == "1"
    scored = Records([{"text": "a", "score": Decimal("4.50")}])  # a database's, as parquet has them
    assert recognised_shape(scored, head_of(scored)).kind == "regression"
    assert [row.label for row in of_kind(scored, "regression")] == ["4.50"]


def test_columns_in_memory_may_be_called_by_numbers_and_lists_be_tuples():
    rows = Records([{0: "a", 1: "x"}])  # as pandas has a table without a header
    (row,) = read_rows(rows, labels=True, columns=Columns("0", None, "1"))
    assert (row.sentence1, row.label) == ("a", "x")
    (row,) = of_kind(Records([{"sentence1": "a", "label": ("x", "y")}]), "labels")
    assert row.label == '["x","y"]'


def test_what_is_wrong_with_all_rows_is_told_of_the_first():
    with pytest.raises(DataError, match=r'^rows:1: expected a dictionary of columns; found "one"\.$'):
        load_data(Records(["one", "two", "three"]))


def test_parts_by_their_names_are_no_rows():
    with pytest.raises(UsageError, match="found one mapping of train, test"):
        source_of({"train": [{"text": "a"}], "test": []})


def test_a_frame_with_two_columns_of_one_name_is_refused():
    frame = SimpleNamespace(
        columns=["text", "label", "label"], iterrows=None, to_dict=lambda _: [{"text": "a", "label": "y"}]
    )
    with pytest.raises(DataError, match="2 columns are called 'label'"):
        Records(frame)


def test_an_array_as_numpy_prints_it_is_no_list_of_one_joined_word():
    assert parse_cell("['a', \"b c\"]") == ["a", "b c"] and parse_cell('{"text": ["a"]}') == {"text": ["a"]}
    for cell in ("['a' 'b']", "[1 0]", "[a]", "[", "[" * 5000 + "]", 7, "{1, 2}"):
        assert parse_cell(cell) == cell


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lists_in_cells_are_no_names_of_classes_where_one_cell_is_empty(tmp_path):
    (path := tmp_path / "rows.csv").write_text("text,labels\na,\"['x', 'y']\"\nb,\nc,\"['x']\"\n")
    assert recognised_shape(path, head_of(path)).kind == "labels"
    with pytest.raises(DataError, match=r"rows.csv:3: the label is a list of names, \[\] for none"):
        of_kind(path, "labels")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_candidates_by_their_own_name_are_of_a_choice(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"sentence1": "a", "candidates": ["b", "c"], "label": 1}])
    (table := tmp_path / "rows.csv").write_text('sentence1,candidates,label\na,"[""b"", ""c""]",1\n')
    for each in (path, table):
        assert recognised_shape(each, head_of(each)).kind == "choice"
        (row,) = of_kind(each, "choice")
        assert row.candidates == ("b", "c")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_prodigy_rejected_or_ignored_is_not_learnt(tmp_path):
    rows = [
        {"text": f"a{i}", "label": f"x{i}", "answer": answer} for i, answer in enumerate(("reject", "accept", "ignore"))
    ]
    bad = []
    path = jsonl(tmp_path / "rows.jsonl", rows)
    kept = [*read_rows(path, labels=True, bad=lambda line, *_: bad.append(line))]
    assert ([row.sentence1 for row in kept], bad) == (["a1"], [1, 3])
    assert len([*read_rows(path, labels=False)]) == 3  # what is only answered is no matter of what was right


def test_one_label_that_prodigys_annotator_accepts_or_rejects_has_two_classes(tmp_path):
    """textcat.teach and textcat.manual with one label ask about it: reject says that the text has it not."""
    answers = ("reject", "accept", "ignore", "accept")
    rows = [{"text": f"a{i}", "label": "SPAM", "answer": answer} for i, answer in enumerate(answers)]
    path, bad = jsonl(tmp_path / "rows.jsonl", rows), []
    with pytest.warns(UserWarning, match="what was rejected is called not SPAM; --kind classification is taken"):
        assert recognised_shape(path, rows).kind == "classification"
    kept = [*read_rows(path, labels=True, bad=lambda line, *_: bad.append(line))]
    assert [(row.sentence1, row.label) for row in kept] == [("a0", "not SPAM"), ("a1", "SPAM"), ("a3", "SPAM")]
    assert bad == [3]
    jsonl(path, [*rows, {"text": "a4", "label": "HAM", "answer": "accept"}])  # what is no SPAM may be anything
    assert {row.label for row in read_rows(path, labels=True, bad=lambda *_: None)} == {"SPAM", "HAM"}
    later = [{"text": f"b{i}", "label": "SPAM", "answer": "accept"} for i in range(HEAD)] + rows[:1]
    assert [*read_rows(jsonl(path, later), labels=True)][-1].label == "not SPAM"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_choice_that_prodigys_annotator_left_open_is_refused_as_such(tmp_path):
    picked = {"text": "a", "options": [{"id": "p"}, {"id": "q"}], "accept": ["q"], "answer": "accept"}
    path = jsonl(tmp_path / "rows.jsonl", [picked, {"text": "b", "options": [], "answer": "ignore"}])
    with pytest.raises(DataError, match=r"rows\.jsonl:2: Prodigy's answer is ignore"):
        [*read_rows(path, labels=True)]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_that_no_annotator_finished_is_refused_and_not_one_without_entities(tmp_path):
    done = {"data": {"text": "Ada."}, "annotations": [{"result": [{"value": {"start": 0, "end": 3, "labels": ["P"]}}]}]}
    path = jsonl(tmp_path / "rows.jsonl", [done, {"data": {"text": "Bob."}, "annotations": []}])
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        of_kind(path, "tokens")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_0_or_1_for_each_label_is_no_list_of_two_labels(tmp_path):
    path = jsonl(
        tmp_path / "rows.jsonl", [{"text": "a", "labels": [1, 0, 1]}, {"text": "b", "labels": [0.0, 0.0, 1.0]}]
    )
    assert recognised_shape(path, head_of(path)).kind == "labels"
    assert [row.label for row in of_kind(path, "labels")] == ['["0","2"]', '["2"]']
    (tmp_path / "label_names.json").write_text('["rude", "kind", "odd"]')
    assert [row.label for row in of_kind(path, "labels")] == ['["odd","rude"]', '["odd"]']
    path = jsonl(tmp_path / "rows.jsonl", [{"text": "a", "labels": [1, 0]}, {"text": "b", "labels": [2]}])
    (tmp_path / "label_names.json").unlink()
    assert [row.label for row in of_kind(path, "labels")] == ['["0","1"]', '["2"]']  # numbers of labels


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_answers_are_counted_from_1_where_one_is_the_last_and_none_is_0(tmp_path):
    rows = [{"question": "q", "choices": ["a", "b", "c"], "answerKey": key} for key in ("1", "3", "2")]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    assert "counted from 1" in recognised_shape(path, head_of(path)).description
    assert [row.label for row in of_kind(path, "choice")] == ["0", "2", "1"]
    path = jsonl(tmp_path / "rows.jsonl", [{**rows[0], "answerKey": key} for key in ("1", "2", "0")])
    assert [json.loads(row.label) for row in of_kind(path, "choice")] == ["1", "2", "0"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("keys", ["132", "acb", "ACB", ("x", "z", "y"), ("option1", "option3", "option2")])
def test_the_answer_beside_numbered_columns_is_a_text_a_letter_or_a_number_too(tmp_path, keys):
    rows = [{"question": "q", "option1": "x", "option2": "y", "option3": "z", "answer": key} for key in keys]
    found = of_kind(jsonl(tmp_path / "rows.jsonl", rows), "choice")
    choice = kind_named("choice")(None)
    assert [choice.expected(row) for row in found] == ["x", "z", "y"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("labels", ["010", "121", "aba", "ABA", ("choice1", "choice2", "choice1"), ("x", "y", "x")])
@pytest.mark.parametrize("form", [{"choice1": "x", "choice2": "y"}, {"endings": ["x", "y"]}])
@pytest.mark.parametrize("second", [{}, {"sentence2": "s"}])
def test_candidates_beside_sentence1_are_a_choice_if_labels_name_them(tmp_path, form, labels, second):
    path = jsonl(tmp_path / "rows.jsonl", [{"sentence1": "q", **second, **form, "label": label} for label in labels])
    if "choice1" in labels and "endings" in form:
        assert recognised_shape(path, head_of(path)) is None  # no such column: the names of classes
        return
    assert recognised_shape(path, head_of(path)).kind == "choice"
    found, choice = of_kind(path, "choice"), kind_named("choice")(None)
    assert [choice.expected(row) for row in found] == ["x", "y", "x"]
    assert {(row.sentence1, row.sentence2) for row in found} == {("q", second.get("sentence2"))}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("text", "labels"), [("sentence1", ("yes", "no")), ("sentence1", "12"), ("premise", "AB")])
def test_a_classification_keeps_the_names_of_its_labels_beside_columns_that_look_like_candidates(
    tmp_path, text, labels
):
    rows = [{text: "q", "option1": "x", "option2": "y", "label": label} for label in labels]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    assert [row.label for row in of_kind(path, "classification")] == [*labels]
    assert (recognised_shape(path, head_of(path)) is None) == ("yes" in labels)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("first", "odd"),
    [
        ({"question": {"stem": "a", "choices": [{"label": "A", "text": "b"}, {"label": "B", "text": "c"}]}, "answerKey": "A"}, {"question": 5}),
        ({"translation": {"en": "a", "de": "b"}}, {"translation": None}),
        ({"data": {"text": "a"}, "annotations": [{"result": [{"value": {"choices": ["x"]}}]}]}, {"data": 3, "annotations": [1]}),
        ({"text": "a", "entities": [[0, 1, "X"]]}, {"text": "a", "entities": 7}),
        ({"ctx": "a", "endings": ["b", "c"], "label": 0}, {"ctx": "a", "endings": 7, "label": 0}),
    ],
)  # fmt: skip
def test_a_row_of_another_shape_than_the_first_is_refused_with_its_line(tmp_path, first, odd):
    path = jsonl(tmp_path / "rows.jsonl", [first, odd])
    kind = recognised_shape(path, head_of(path)).kind
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        if kind == "text":
            source = pattern("{en}")
            list(read_rows(path, labels=False, columns=Columns(source=source)))
        else:
            of_kind(path, kind)


def zipped(name, content):
    """As Kaggle packs a table, and a Mac adds its own to it."""
    with zipfile.ZipFile(file := io.BytesIO(), "w") as packed:
        packed.writestr("all/", "")
        packed.writestr(f"all/{name}", content)
        packed.writestr(f"__MACOSX/all/._{name}", b"\x00")
    return file.getvalue()


CONTAINERS = {
    "records.json": lambda rows: json.dumps({"data": rows}),
    "by-index.json": lambda rows: json.dumps({n: {str(i): row[n] for i, row in enumerate(rows)} for n in rows[0]}),
    "by-column.json": lambda rows: json.dumps({n: [row[n] for row in rows] for n in rows[0]}),
    "utf-16.csv": lambda rows: ("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows)).encode("utf-16"),
    "western.csv": lambda rows: ("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows)).encode(
        "cp1252"
    ),
    "western.csv.gz": lambda rows: gzip.compress(CONTAINERS["western.csv"](rows)),
    "utf-16.csv.gz": lambda rows: gzip.compress(CONTAINERS["utf-16.csv"](rows)),
    "table.zip": lambda rows: zipped("Reviews.CSV", CONTAINERS["western.csv"](rows)),
    "lines.zip": lambda rows: zipped("reviews.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
    "packed.jsonl.gz": lambda rows: gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*CONTAINERS, "folder.of.texts", "texts.zip", "sheet.xlsx"])
def test_the_same_rows_are_read_of_every_container(tmp_path, name):
    wanted = [("Über kalte Suppe: «nie»", "bad"), ("ein schöner Abend", "good"), ("no umlaut at all", "good")]
    rows, path = [{"text": text, "label": label} for text, label in wanted], tmp_path / name
    if name == "sheet.xlsx":
        openpyxl = pytest.importorskip("openpyxl", reason="pip install edgepeft[data]")
        book = openpyxl.Workbook()
        for cells in [("text", "label"), *wanted, (None, None)]:
            book.active.append(cells)
        book.save(path)
    elif name == "folder.of.texts":
        for i, row in enumerate(rows):
            (file := path / row["label"] / f"{i}.txt").parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["text"], encoding="utf-8")
    elif name == "texts.zip":
        with zipfile.ZipFile(path, "w") as packed:
            for i, row in enumerate(rows):
                packed.writestr(f"all/{row['label']}/{i}.txt", row["text"])
    else:
        content = CONTAINERS[name](rows)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert sorted((row.sentence1, row.label) for row in read_rows(path, labels=True)) == sorted(wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_spreadsheets_columns_without_names_and_texts_in_western_letters_are_read(tmp_path):
    (path := tmp_path / "spam.csv").write_bytes("v1,v2,,,\nham,caf\xe9,,,\nspam,b,,,\n".encode("cp1252"))
    rows = [*read_rows(path, labels=True, columns=Columns(text="v2", label="v1"))]
    assert [(row.sentence1, row.label) for row in rows] == [("caf\xe9", "ham"), ("b", "spam")]
    (file := tmp_path / "texts" / "sport" / "1.txt").parent.mkdir(parents=True)
    file.write_bytes("caf\xe9".encode("cp1252"))
    (row,) = read_rows(tmp_path / "texts", labels=True)
    assert (row.sentence1, row.label) == ("caf\xe9", "sport")


def test_cells_in_columns_without_a_name_are_said_but_for_the_numbers_of_rows(tmp_path):
    """Kaggle's spam.csv has texts that go on in such columns."""
    (path := tmp_path / "spam.csv").write_text("label,sentence1,,\nham,a,,\nspam,b, c,\nham,d,,e\n")
    with pytest.warns(UserWarning, match=r"2 rows have cells in columns without a name \(lines 3, 4\), which are not"):
        assert [row.sentence1 for row in read_rows(path, labels=True)] == ["a", "b", "d"]
    path.write_text(",sentence1,label\n0,a,x\n1,b,y\n")
    with warnings.catch_warnings(action="error"):
        assert [row.sentence1 for row in read_rows(path, labels=True)] == ["a", "b"]
    book = pytest.importorskip("openpyxl", reason="pip install edgepeft[data]").Workbook()
    for cells in [(None, "sentence1", "label"), (0, "a", "x"), (1, "b", "y", None, "sure?")]:
        book.active.append(cells)
    book.save(path := tmp_path / "sheet.xlsx")
    with pytest.warns(UserWarning, match=r"1 row has cells in columns without a name \(line 3\)"):
        assert [row.label for row in read_rows(path, labels=True)] == ["x", "y"]


def test_a_number_in_a_spreadsheet_is_a_text_as_in_a_csv(tmp_path):
    book = pytest.importorskip("openpyxl", reason="pip install edgepeft[data]").Workbook()
    for cells in [("sentence1", "label"), (2012, 1), ("ten", 2.0), (3.5, 0.25)]:
        book.active.append(cells)
    book.save(path := tmp_path / "sheet.xlsx")
    rows = read_rows(path, labels=True)
    assert [(row.sentence1, row.label) for row in rows] == [("2012", "1"), ("ten", "2"), ("3.5", "0.25")]


def test_a_cell_may_hold_unicodes_own_line_separator(tmp_path):
    text = "first\u2028second\x0bthird \u00e9"
    for encoding in ("utf-8", "utf-16"):
        (path := tmp_path / f"{encoding}.csv").write_bytes(f"sentence1,label\r\n{text},x\r\n".encode(encoding))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (row,) = read_rows(path, labels=True)
        assert (row.sentence1, row.label) == (text, "x")


def test_what_is_read_in_another_encoding_is_said_and_what_is_none_is_refused(tmp_path):
    (path := tmp_path / "rows.csv").write_bytes("text,label\ncaf\xe9,x\n".encode("cp1252"))
    with pytest.warns(UserWarning, match="not UTF-8; read as Windows-1252"):
        assert next(read_rows(path, labels=True)).sentence1 == "caf\xe9"
    path.write_bytes(b"text,label\ncaf\x81,x\n")  # a byte that it does not have
    with pytest.raises(DataError, match=r"rows\.csv:2: not UTF-8"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(read_rows(path, labels=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"no zip", "a.zip is no zip file"),
        ("a.csv.gz", b"text,label", "a.csv.gz is no gz file"),
        ("a.json", b'{"data": [{"paragraphs": 5}]}', "a.json: expected rows under data, or SQuAD's paragraphs"),
        ("a.json", b'{"data": [{"paragraphs": [{"context": "a", "qas": [3]}]}]}', "a.json: expected rows under data"),
        ("a.json", b'{"data": {"a": 1}}', "a.json:1: no column sentence1"),
        ("a.txt", b"Just some text.\n", "a.txt has no words with tags.* If it is a table, call it .csv"),
        ("a.csv.zst", b"", r"a.csv.zst ends in .zst.* Unpack it\.$"),
        ("a.ods", b"", "a.ods ends in .ods.* Save it as .xlsx or .csv"),
        ("a.tsv", b"#FORMAT=WebAnno TSV 3.3\n", "a.tsv is INCEpTION's WebAnno TSV; export CoNLL 2002"),
        ("a.csv", b'text,label\n"a \\"b\\" c",x\n', r'a.csv:2: not a table .* twice \(""\), where Spark'),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}', r"A chat \(messages\) is not read"),
        ("a.json", json.dumps({f"c{i}": i for i in range(25)}).encode(), "c19 and 5 more"),
        ("a.conllu", b"1-2\tdu\t_\n1\tde\tde\tADP\t_\t_\t_\t_\t_\t_\n", "columns, where lines before have"),
    ],
)
def test_a_container_that_is_none_is_refused_in_a_sentence(tmp_path, name, content, message):
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, UsageError), match=message):
        list(read_rows(path, labels=False))


def test_universal_dependencies_give_their_words_and_parts_of_speech(tmp_path):
    lines = ["# text = du pain", "1-2\tdu\t_\t_", "1\tde\tde\tADP", "2\tle\tle\tDET", "3\tpain\tpain\tNOUN", ""]
    (path := tmp_path / "rows.conllu").write_text(
        "\n".join(line + "\t_" * 6 if line[:1].isdigit() else line for line in lines)
    )
    (row,) = of_kind(path, "tokens")
    assert (row.sentence1, json.loads(row.label)) == ("de le pain", {"tags": ["ADP", "DET", "NOUN"]})


NAMES = {
    "label_names.json": '["ham", "spam", "spim"]',
    "id2label.json": '{"0": "ham", "1": "spam", "2": "spim"}',
    "labels.txt": "ham\nspam\nspim\n",
    "classes.txt": "0 ham\n1 spam\n2 spim\n",
    "config.json": '{"id2label": {"0": "ham", "1": "spam", "2": "spim"}, "label2id": {"ham": 0}}',
    "dataset_info.json": json.dumps(
        {"features": {"label": {"names": ["ham", "spam", "spim"], "_type": "ClassLabel"}, "text": {"dtype": "string"}}}
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_are_numbers_have_the_names_of_a_file_beside_them(tmp_path, name):
    (tmp_path / name).write_text(NAMES[name])
    (path := tmp_path / "rows.csv").write_text("text,label\na,2\nb,0\nc,1\n")
    with pytest.warns(UserWarning, match=rf"names {name} has: 0 is ham, 1 is spam, 2 is spim"):
        assert [row.label for row in of_kind(path, "classification")] == ["spim", "ham", "spam"]
    assert [row.label for row in of_kind(path, "regression")] == ["2", "0", "1"]
    path.write_text("text,label\na,1\nb,3\n")
    with pytest.raises(DataError, match=rf"csv:3: the label 3 has no name in {name}, which names 0 to 2"):
        of_kind(path, "classification")
    path.write_text("text,label\na,1\nb,some\n")  # some are names: all are
    assert [row.label for row in of_kind(path, "classification")] == ["1", "some"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tags_and_lists_of_numbers_have_names_too_and_without_them_tags_are_refused(tmp_path):
    tags = jsonl(tmp_path / "tags.jsonl", [{"tokens": ["Ada", "came"], "ner_tags": [1, 0]}])
    lines = tmp_path / "tags.conll"
    lines.write_text("Ada 1\ncame 0\n")
    for path in (tags, lines):
        with pytest.raises(DataError, match=r"tags are numbers, .* label_names\.json beside them"):
            of_kind(path, "tokens")
    (tmp_path / "label_names.json").write_text('{"O": 0, "B-PER": 1}')
    for path in (tags, lines):
        assert [json.loads(row.label) for row in of_kind(path, "tokens")] == [{"tags": ["B-PER", "O"]}]
    lists = jsonl(tmp_path / "lists.jsonl", [{"text": "a", "labels": [1, 0]}, {"text": "b", "labels": []}])
    assert recognised_shape(lists, head_of(lists)).kind == "labels"
    assert [row.label for row in of_kind(lists, "labels")] == ['["B-PER","O"]', "[]"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_many_numbers_with_names_are_not_asked_about_and_names_that_are_none_are_refused(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"text": "a", "label": i} for i in range(40)])
    with pytest.raises(UsageError, match="holds numbers"):
        recognised_shape(path, head_of(path))
    (names := tmp_path / "labels.txt").write_text("".join(f"name {i}\n" for i in range(40)))
    assert recognised_shape(path, head_of(path)) is None
    names.write_text("one\none\n")  # no names, and nobody says that they are
    assert {row.label for row in of_kind(path, "classification")} == {*map(str, range(40))}
    (tmp_path / "config.json").write_text('{"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}')
    assert {row.label for row in of_kind(path, "classification")} == {*map(str, range(40))}
    (tmp_path / "label_names.json").write_text('["one", 2]')
    with pytest.raises(DataError, match=r"label_names\.json has no names of labels"):
        of_kind(path, "classification")
    (tmp_path / "label_names.json").write_text(json.dumps([f"n{i}" for i in range(40)]))
    (tmp_path / "labels.txt").write_text("".join(f"name {i}\n" for i in range(40)))
    with pytest.raises(DataError, match=r"label_names\.json and labels\.txt beside it name its labels in two ways"):
        of_kind(path, "classification")


WHOLE = {
    "scores.jsonl": lambda: [{"text1": t, "text2": TEXTS[-1 - i], "score": (i % 11) / 2} for i, t in enumerate(TEXTS)],
    "lists.jsonl": lambda: [{"text": t, "labels": sorted({"good", "bad"} & {*t.split()})} for t in TEXTS],
    "tagged.jsonl": lambda: [
        {"tokens": t.split(), "ner_tags": ["B-X" if w == "car" else "O" for w in t.split()]} for t in TEXTS
    ],
    "endings.jsonl": lambda: [
        {"ctx": t, "endings": [f"{TEXTS[-1 - i]} {n}" for n in "abc"], "label": i % 3} for i, t in enumerate(TEXTS)
    ],
    "near.jsonl": lambda: [{"anchor": f"{t} {i}", "positive": f"{t} {i} too"} for i, t in enumerate(TEXTS)],
    "asked.jsonl": lambda: [
        {"question": f"which {i}?", "context": t, "answers": {"text": [t.split()[2]], "answer_start": [t.find(t.split()[2])]}}
        for i, t in enumerate(TEXTS)
    ],
}  # fmt: skip
KINDS = dict(zip(WHOLE, ("regression", "labels", "tokens", "choice", "embedding", "spans"), strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_a_file_alone_goes_from_training_to_an_answer(tmp_path, name):
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    from tiny import write_model

    import edgepeft

    path = jsonl(tmp_path / name, WHOLE[name]())
    model = write_model(tmp_path / "model", "bert", mean=True)
    trained = edgepeft.train(
        backbone=model, data=path, task="t", method="bitfit", steps=2, out=tmp_path / "t", threads=1
    )
    assert trained.delta.card.task_kind.name == KINDS[name]
    edgepeft.export(backbone=model, delta=tmp_path / "t", out=tmp_path / "bundle")
    scored = edgepeft.evaluate(bundle=tmp_path / "bundle", task="t", data=path, threads=1)
    assert scored.rows == len(TEXTS) and scored.metric == trained.metric


ODD = (
    None,
    5,
    "",
    [],
    {},
    [1, 2],
    {"a": 1},
    "text",
    True,
    [[0, 3, "X"]],
    float("nan"),
    {"text": ["a"], "label": ["b"]},
)


def mutated(value, chance):
    """The value with one thing in it replaced or left out."""
    if chance.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return chance.choice(ODD)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        return [mutated(each, chance) if i == place else each for i, each in enumerate(value)]
    name = chance.choice([*value])
    if chance.random() < 0.2:
        return {other: each for other, each in value.items() if other != name}
    return {**value, name: mutated(value[name], chance)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_rows_that_hold_anything_are_read_or_refused_and_never_a_traceback(tmp_path, name):
    (path := tmp_path / name).write_text(FILES[name][1])
    chance, whole = random.Random(0), head_of(path)
    for _ in range(150):
        rows = [mutated(row, chance) if chance.random() < 0.5 else row for row in whole]
        with contextlib.suppress(EdgepeftError):
            source = Records([row for row in rows if isinstance(row, dict)])
            shape = recognised_shape(source, head_of(source))
            of_kind(source, shape.kind if shape and not shape.source else "classification")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_numbers_with_commas_are_asked_about(tmp_path):
    (path := tmp_path / "rows.csv").write_text("text;label\n" + "".join(f"w{i};{i % 5},5\n" for i in range(20)))
    with pytest.raises(UsageError, match="holds numbers with commas \\(0,5; 1,5; 2,5\\)"):
        recognised_shape(path, [*head_of(path), {"text": "z", "label": ""}])
    row, *_ = of_kind(path, "regression")
    with pytest.raises(DataError, match="found '0,5'; write it with a point"):
        kind_named("regression")(None).expected(row)
    path.write_text('text,label\na,x\nb,"1,5"\n')
    assert recognised_shape(path, head_of(path)) is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_underscore_is_of_no_number(tmp_path):
    (path := tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"w{i},1_{i % 25}\n" for i in range(100)))
    assert recognised_shape(path, head_of(path)) is None
    row, *_ = of_kind(path, "regression")
    with pytest.raises(DataError, match="found '1_0'"):
        kind_named("regression")(None).expected(row)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_missing_number_is_refused_with_its_line_and_the_others_are_numbers_all_the_same(tmp_path):
    (path := tmp_path / "rows.csv").write_text("text,rating\na,1.5\nb,\nc,3\n")
    assert recognised_shape(path, head_of(path)).kind == "regression"
    with pytest.raises(DataError, match=r"rows.csv:3: the label is empty"):
        of_kind(path, "regression")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_asks_about_numbers_after_the_first_rows_unless_their_kind_is_said(tmp_path):
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    from edgepeft.options.verbs import TrainOptions
    from edgepeft.training.settings import resolve_request

    rows = [{"text": f"w{i}", "label": i % 2 if i < 110 else i % 9 / 2} for i in range(200)]
    for data in (jsonl(tmp_path / "rows.jsonl", rows), rows):
        asked = {"backbone": "none", "data": data, "task": "t", "out": tmp_path / "t"}
        with pytest.raises(UsageError, match="the label holds numbers"):
            resolve_request(TrainOptions(**asked)).rows()
        assert resolve_request(TrainOptions(**asked, kind="classification")).rows().task_kind.name == "classification"
        assert resolve_request(TrainOptions(**asked, regression=True)).rows().task_kind.name == "regression"


def test_numbers_to_learn_are_asked_about_even_after_the_first_rows(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", [{"text": f"t{i}", "label": 5 if i < 120 else i / 8} for i in range(200)])
    assert recognised_shape(path, head_of(path)) is None  # the first hundred are all 5
    with pytest.raises(UsageError, match="--kind regression"):
        load_data(path)
    assert load_data(path, kind="regression").task_kind.name == "regression"


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("spacy", [["Ada came.", {"entities": [[0, 3, "PER"]]}]]),
        ("annotator", {"classes": ["PER"], "annotations": [["Ada came.", {"entities": [[0, 3, "PER"]]}], None]}),
        ("index", {"7": {"text": "Ada came.", "entities": [[0, 3, "PER"]]}}),
        ("columns", {"text": {"7": "Ada came."}, "entities": {"7": [[0, 3, "PER"]]}}),
        ("split", {"columns": ["text", "entities"], "index": [0], "data": [["Ada came.", [[0, 3, "PER"]]]]}),
    ],
)
def test_other_documents_of_json_have_the_same_rows(tmp_path, name, document):
    (path := tmp_path / "rows.json").write_text(json.dumps(document))
    assert head_of(path) == [{"text": "Ada came.", "entities": [[0, 3, "PER"]]}]


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ({"0": {"r0": "a", "r1": "b"}, "1": {"r0": "x", "r1": "y"}}, [{"0": "a", "1": "x"}, {"0": "b", "1": "y"}]),
        ({"0": {"r0": "a"}, "1": {"r0": "x"}}, [{"0": "a", "1": "x"}]),
        ({"0": {"Satz": "a"}, "1": {"Satz": "b"}, "2": {"Satz": "c"}}, [{"Satz": "a"}, {"Satz": "b"}, {"Satz": "c"}]),
        ({"0": {"Text": "a", "y": "x"}}, [{"Text": "a", "y": "x"}]),
    ],
)
def test_columns_of_pandas_may_be_called_by_numbers_and_rows_too(tmp_path, document, rows):
    (path := tmp_path / "rows.json").write_text(json.dumps(document))
    assert head_of(path) == rows


def test_a_json_of_an_object_a_line_is_read_by_its_lines(tmp_path):
    """As ``Dataset.to_json`` and pandas write them, and as many data sets are published."""
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert head_of(jsonl(tmp_path / "rows.json", rows)) == rows
    packed = tmp_path / "rows.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows.json").read_bytes()))
    assert head_of(packed) == rows
    (path := tmp_path / "columns.json").write_text('{"text": ["a", "b"], "label": ["x", "y"]}\n\n')
    assert head_of(path) == rows


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lines_of_fasttext_are_texts_with_their_labels(tmp_path):
    (path := tmp_path / "rows.txt").write_text(
        "__label__good  It was, well, fine.\n\n__label__not_good Cold __label__ soup\n"
    )
    wanted = [("It was, well, fine.", "good"), ("Cold __label__ soup", "not_good")]
    assert [(row.sentence1, row.label) for row in of_kind(path, "classification")] == wanted
    assert recognised_shape(path, head_of(path)) is None
    assert [row.label for row in of_kind(path, "labels")] == ['["good"]', '["not_good"]']
    path.write_text("__label__a __label__b One.\n__label__a Two.\n")
    assert recognised_shape(path, head_of(path)).kind == "labels"
    assert [row.label for row in of_kind(path, "labels")] == ['["a","b"]', '["a"]']
    path.write_text("__label__4.5 One.\n__label__2 Two.\n")
    with pytest.raises(UsageError, match="label holds numbers"):
        recognised_shape(path, head_of(path))
    assert [row.label for row in of_kind(path, "regression")] == ["4.5", "2"]
    path.write_text("__label__a One.\n" * 150 + "__label__a __label__b Two.\nNone.\n__label__b")
    assert [row.label for row in of_kind(path, "labels")][-3:] == ['["a","b"]', "[]", '["b"]']


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_folder_of_brat_has_texts_and_their_marks(tmp_path):
    (folder := tmp_path / "brat" / "news").mkdir(parents=True)
    (folder / "1.txt").write_bytes("\U0001f600 Ada\r\nLovelace came.\n".encode())
    (folder / "1.ann").write_text("T1\tPER 2 15\tAda  Lovelace\nR1\tKnows Arg1:T1 Arg2:T1\n#1\tNote T1\tx\n")
    (folder / "2.txt").write_text("Nobody.")
    (folder / "2.ann").write_text("")
    rows = of_kind(tmp_path / "brat", "tokens")
    assert [json.loads(row.label) for row in rows] == [{"spans": [[2, 15, "PER"]]}, {"spans": []}]
    for mark in ("PER 0 2;4 6\tNo dy", "PER 0 " + "9" * 5000 + "\tNo", "PER 0 \u00b2\tNo", "PER"):
        (folder / "2.ann").write_text(f"T1\t{mark}\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"2\.ann:1: a mark has one start and one end; found 'T1"):
            of_kind(tmp_path / "brat", "tokens")
    (folder / "2.ann").write_text("T1\tPER 0 2\tbody\n")
    with pytest.raises(DataError, match=r"2\.ann: the span 0 to 2 says .body., and .No. stands there"):
        of_kind(tmp_path / "brat", "tokens")
    (folder / "2.txt").unlink()
    with pytest.raises(DataError, match=r"2\.ann has no text beside it"):
        of_kind(tmp_path / "brat", "tokens")


def test_marks_without_texts_make_no_brat_of_a_folder_and_parts_of_it_are_not_read_as_one(tmp_path):
    """As Annoy's indices, git's branches, and what macOS copies with a file."""
    for name in ("spam/1.txt", "ham/2.txt", "index.ann", ".git/x.ann", ".git/x.txt", "spam/._1.ann", "spam/._1.txt"):
        (file := tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a")
    assert [row["label"] for row in head_of(tmp_path / "texts")] == ["ham", "spam"]
    for name in ("train/1.txt", "train/1.ann", "test/2.txt", "test/2.ann"):
        (file := tmp_path / "brat" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    with pytest.raises(DataError, match="brat has folders test and train: give each"):
        head_of(tmp_path / "brat")


def sheets(path, **rows_of):
    openpyxl = pytest.importorskip("openpyxl", reason="pip install edgepeft[data]")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in rows_of.items():
        sheet = book.create_sheet(title.removeprefix("hidden_"))
        sheet.sheet_state = "hidden" if title.startswith("hidden_") else "visible"
        for cells in rows:
            sheet.append(cells)
    book.save(path)
    return path


ROWS_OF_SHEET = [("text", "label"), ("a", "x"), ("b", "y")]


def test_the_first_sheet_that_is_shown_and_has_rows_is_read_and_others_are_named(tmp_path):
    wanted = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    path = sheets(tmp_path / "rows.xlsm", Sheet1=[], Data=ROWS_OF_SHEET, Sheet3=[])
    with warnings.catch_warnings(action="error"):
        assert head_of(path) == wanted
    path = sheets(tmp_path / "rows.xlsm", hidden_Old=[("p",), ("q",)], Cover=[(), ("a",)], Data=ROWS_OF_SHEET)
    with pytest.warns(UserWarning, match=r"the sheet Data is read, and Old, Cover are not"):
        assert head_of(path) == wanted
    path = sheets(tmp_path / "rows.xlsx", train=ROWS_OF_SHEET, test=ROWS_OF_SHEET)
    with pytest.warns(UserWarning, match=r"the sheet train is read, and test is not"):
        assert head_of(path) == wanted


def test_a_title_above_the_names_of_columns_is_left_out_and_said(tmp_path):
    path = sheets(tmp_path / "rows.xlsx", Reviews=[("Reviews of 2024",), ("exported today",), (), *ROWS_OF_SHEET])
    with pytest.warns(UserWarning, match=r'names of columns stand in line 4; .* not read: "Reviews of 2024"'):
        assert head_of(path) == [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    (path := tmp_path / "rows.csv").write_text("Reviews of 2024,\ntext,label\na,x\n")
    with pytest.warns(UserWarning, match="stand in line 2"):
        assert head_of(path) == [{"text": "a", "label": "x"}]
    for content in ("text\na\nb\n", ",text\n0,text\n1,b\n", "note,text\n,a\n", ",sms\n0,Content\n1,b\n"):  # no title
        path.write_text(content)
        with warnings.catch_warnings(action="error"):
            assert [*head_of(path)[-1].values()][-1] in "ab"
    (path := tmp_path / "rows.tsv").write_text('Reviews\ntext\tlabel\n"a"\tx\n')
    with pytest.warns(UserWarning, match="quotation marks around 1 cell are characters of the text"):
        assert head_of(path) == [{"text": '"a"', "label": "x"}]


def test_sheets_without_rows_are_walked_as_far_as_two_whole_ones_together(tmp_path, monkeypatch):
    monkeypatch.setattr("edgepeft.data.tables._SHEET_ROWS", 50)
    rows = [*[()] * 40, *ROWS_OF_SHEET]
    assert len(head_of(sheets(tmp_path / "rows.xlsx", A=[*[()] * 49, ("x",)], B=rows))) == 2
    blank = {name: [*[()] * 49, ("x",)] for name in "ABC"}
    assert head_of(sheets(tmp_path / "rows.xlsx", **blank, D=rows)) == []


def test_characters_that_excel_writes_by_their_codes_are_these(tmp_path):
    cells = [("text", "label"), ("one_x000D_\ntwo _x005F_x000D_", "a_x_b")]
    (row,) = head_of(sheets(tmp_path / "rows.xlsx", Data=cells))
    assert row == {"text": "one\r\ntwo _x000D_", "label": "a_x_b"}


def test_parts_of_a_data_set_are_not_read_as_one_and_files_need_no_ending(tmp_path):
    for name in ("news/a/1", "news/b/2", "both/train/a/1.txt", "both/val/a/1.txt"):
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "news" / "a" / ".hidden").write_text("x")
    assert [row["text"] for row in head_of(tmp_path / "news")] == ["news/a/1", "news/b/2"]
    with pytest.raises(DataError, match="folders train and val"):
        head_of(tmp_path / "both")


@pytest.mark.parametrize("code", ["cp1251", "shift_jis", "utf-16-le"])
def test_letters_of_no_western_language_are_not_taken_for_some(tmp_path, code):
    text = (
        "text,label\nhello,a\n"
        if code == "utf-16-le"
        else "text,label\n" + ("Привет,a\n" if code == "cp1251" else "こんにちは,a\n")
    )
    (path := tmp_path / "rows.csv").write_bytes(text.encode(code))
    with pytest.raises(DataError, match="save the file as UTF-8"):
        head_of(path)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["x", "y", "\\N"], r"missing one are names like others: '\\\\N' \(3 rows"),  # PostgreSQL's and MySQL's
        (["x", "y", "x#y"], "--kind labels --label-separator '#' reads: 'x#y'"),  # doccano's
    ],
)
def test_labels_as_tools_export_none_or_several_are_said(tmp_path, labels, said):
    path = jsonl(tmp_path / "rows.jsonl", [{"sentence1": f"t{i}", "label": labels[i % 3]} for i in range(9)])
    with pytest.warns(UserWarning, match=said):
        load_data(path)


def test_labels_that_may_be_none_or_the_same_or_too_rare_are_said(tmp_path):
    labels = ["x", "x", "nan", "nan", "1", "1", "1.0", "1.0", "y"]
    path = jsonl(tmp_path / "rows.jsonl", [{"sentence1": f"t{i}", "label": label} for i, label in enumerate(labels)])
    with pytest.warns(UserWarning) as said:
        load_data(path)
    told = " ".join(str(each.message) for each in said)
    assert "missing one are names like others: 'nan' (2 rows: rows.jsonl:3, rows.jsonl:4)" in told
    assert "too rare to be learnt: 'y' (1 row: rows.jsonl:9)" in told
    assert "'1' (2 rows: rows.jsonl:5, rows.jsonl:6) and '1.0'" in told

"""Answers in passages: rows, windows, the search for the best span, the threshold, and SQuAD's scores by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.common.errors import DataError
from edgepeft.data.batches import encode
from edgepeft.data.columns import Columns
from edgepeft.data.parts import load_data
from edgepeft.data.row_grouping import LOWEST, Asked, Passage
from edgepeft.data.rows import Row, read_rows
from edgepeft.tasks.spans import Spans, right_texts

NO_ANSWER = {"text": [], "answer_start": []}


def asked(question: str, passage: str, answers: Any) -> Row:
    return Row(question, passage, Spans.label_text(answers, "f:1"), "f", 1)


def at(start: int, text: str) -> dict[str, Any]:
    return {"text": [text], "answer_start": [start]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (asked("q", "in Rome", at(4, "Rome")), 'f:1: the answer "Rome" at 4 ends beyond it'),
        (asked("q", "in Rome", at(-1, "Rome")), "starts before it: the passage has 7 characters"),
        (asked("q", "in Rome now", at(4, "Rome")), 'at 4 of the passage stands "ome ".*it stands at 3'),
        (asked("q", "in Rome", at(0, "of")), "stands nowhere in it"),
        (asked(" ", "in Rome", at(3, "Rome")), "f:1: the question is empty"),
        (asked("q", "", NO_ANSWER), "f:1: the passage is empty"),
        (Row("q", None, "[]", "f", 1), "f:1: the passage is empty"),
        (asked("q", "in Rome", at(2, " ")), "an answer has no text"),
    ],
)
def test_what_cannot_be_an_answer_names_its_row(row: Row, words: str):
    with pytest.raises(DataError, match=words):
        Spans().unknown_label(row)


@pytest.mark.parametrize(
    "value", [3, "x", {"text": ["a"]}, {"text": ["a"], "answer_start": []}, [{"text": "a"}], at(0.5, "a")]
)  # type: ignore[arg-type]
def test_what_are_no_answers_is_said_with_the_row(value: Any):
    with pytest.raises(DataError, match="f:1: answers are "):
        Spans.label_text(value, "f:1")


def test_forms_of_rows_are_one(tmp_path: Path):
    answers = at(3, "Rome")
    forms = [
        {"question": "q", "context": "in Rome", "answers": answers},
        {"question": "q", "context": "in Rome", "answers": [{"text": "Rome", "answer_start": 3}]},
        {"sentence1": "q", "sentence2": "in Rome", "label": answers},
        {"sentence1": "q", "sentence2": "in Rome", "label": json.dumps(answers)},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in forms))
    columns = Spans.columns(Columns())
    rows = list(read_rows(path, labels=True, columns=columns, label_of=Spans.label_text))
    assert {(row.sentence1, row.sentence2, row.label) for row in rows} == {("q", "in Rome", '[[3,"Rome"]]')}
    none = [Spans.label_text(value, "f:1") for value in (None, [], {}, NO_ANSWER, "[]")]
    assert set(none) == {"[]"}


@pytest.mark.parametrize(
    ("given", "right", "exact", "f1"),
    [
        ("the Eiffel Tower!", ["Eiffel tower"], 1, 1),  # articles, letters, punctuation
        ("Eiffel Tower in Paris", ["Eiffel Tower"], 0, 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("Paris", ["London", "in Paris"], 0, 2 * 1 * 0.5 / 1.5),  # the best of several
        ("", [], 1, 1),
        ("Paris", [], 0, 0),
        ("", ["Paris"], 0, 0),
        ("the the", ["the"], 1, 1),  # no word is left of the right one, which is as none
    ],
)
def test_scores_are_squads_by_hand(given: str, right: list[str], exact: float, f1: float):
    row = asked("q", " ".join(right) or "x", [{"text": t, "answer_start": (" ".join(right)).index(t)} for t in right])
    target = np.fromiter([Asked(Passage(given, (), ()), right_texts(row), np.zeros((0, 2), np.int64))], object, 1)
    whole = np.array([[-2.0, 0, 0, 0, 0]])  # the answer is all of the passage
    scores = [Spans().score(metric, target, whole) for metric in ("exact_match", "f1")]
    assert scores == pytest.approx([exact, f1])


@pytest.fixture(scope="module")
def encoder(tiny: Callable[..., Path]) -> Any:
    return open_backbone(str(tiny("bert"))).encoder()


def test_windows_cover_the_passage_and_say_where_its_tokens_stand(encoder: Any):
    passage = "😀 " + " ".join(f"w{i}" for i in range(10, 40))
    start = passage.index("w25")
    row = asked("w5 w6", passage, at(start, "w25 w26"))
    rows = encode([row, asked("w5", "w7", NO_ANSWER)], Spans(), encoder, 16, 0)
    target = rows.targets[0]
    assert rows.per_row.tolist() == [len(target.wanted), 1] and len(target.wanted) > 2
    assert all(length <= 16 for length in rows.token_lengths)
    covered = {(int(a), int(b)) for offsets in target.passage.offsets for a, b in offsets}
    assert {passage[a:b] for a, b in covered} >= {f"w{i}" for i in range(10, 40)}
    holding = 0
    for places, offsets, (first, last) in zip(
        target.passage.places, target.passage.offsets, target.wanted, strict=True
    ):
        texts = {int(place): passage[a:b] for place, (a, b) in zip(places, offsets, strict=True)}
        if {"w25", "w26"} <= {*texts.values()}:
            holding += 1
            assert (texts[first], texts[last]) == ("w25", "w26")
        else:
            assert (first, last) == (0, 0)
    assert holding and rows.targets[1].wanted.tolist() == [[0, 0]]
    read = rows.readable([0, 1])
    assert read[:, 0].all() and read.sum(1).tolist() == [1 + len(p) for t in rows.targets for p in t.passage.places]
    assert not read[:-1, 1:4].any()  # the question and what separates it


def test_a_question_that_leaves_no_room_is_refused_with_its_row(encoder: Any):
    with pytest.raises(DataError, match="f:1: the question's 10 tokens leave 3 of 16 for the passage"):
        encode([asked("w5 " * 10, "w7 w8", NO_ANSWER)], Spans(), encoder, 16, 0)


def test_windows_are_those_of_transformers(tiny: Callable[..., Path], encoder: Any):
    from transformers import PreTrainedTokenizerFast

    passage = " ".join(f"w{i}" for i in range(10, 40))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tiny("bert") / "tokenizer.json"))
    how = {"truncation": "only_second", "max_length": 16, "stride": 5, "return_overflowing_tokens": True}
    theirs = tokenizer("w5 w6", passage, **how)
    own = encoder.windows([Text("w5 w6", passage)], 16, 5, second=True)
    mask = own.inputs["attention_mask"].sum(1)
    assert [row[:n].tolist() for row, n in zip(own.inputs["input_ids"], mask, strict=True)] == theirs["input_ids"]


def of(logits: list[list[list[float]]]) -> np.ndarray:
    """[windows][start or end][tokens] of one row -> [1, K, S, 2]."""
    return np.moveaxis(np.array(logits, float), 1, -1)[None]


def test_the_best_span_is_forward_within_a_window_and_not_too_long():
    no = LOWEST
    two = of([
        [[1, 9, 2, 0], [3, 0, 5, 8]],  # 9 + 8, at 1 to 3
        [[-1, 2, 9.5, no], [1, 9, 0, no]],  # 9.5 + 9 would be backward
    ])  # fmt: skip
    assert Spans().outputs(two)[0].tolist() == [0, 1, 3, 17, 0]  # the least of 1 + 3 and -1 + 1
    long = np.zeros((1, 1, 50, 2))
    long[0, 0, 5, 0], long[0, 0, 34, 1], long[0, 0, 35, 1] = 9, 4, 5
    assert Spans().outputs(long)[0].tolist() == [0, 5, 34, 13, 0]  # 30 tokens; 31 are too many
    padded = np.concatenate([two, np.full((1, 1, 4, 2), LOWEST)], 1)
    np.testing.assert_array_equal(Spans().outputs(padded), Spans().outputs(two))


def test_the_threshold_is_the_one_of_the_best_f1():
    passage = Passage("in Rome", (np.array([3, 4]),), (np.array([[0, 2], [3, 7]]),))
    wanted = np.zeros((1, 2), np.int64)

    def row(text: str, apart: float) -> tuple[Asked, list[float]]:
        return Asked(passage, (text,), wanted), [0, 4, 4, 10, 10 + apart]

    rows = [row("Rome", -3), row("Rome", 1), row("", 2), row("", 4), row("", -2), row("Rome", 1.5)]
    targets, outputs = np.empty(len(rows), object), np.array([each for _, each in rows])
    targets[:] = [each for each, _ in rows]
    kind = Spans().with_chosen(targets, outputs)
    assert kind.chosen == {"threshold": 1.75}  # by hand: only the row at -2 is wrong
    assert kind.score("f1", targets, outputs) == pytest.approx(5 / 6)
    assert Spans().score("f1", targets, outputs) == pytest.approx(3 / 6)  # always an answer
    figures = kind.errors(targets, outputs)["figures"]
    assert (figures["has_answer_f1"], figures["no_answer_f1"]) == pytest.approx((1, 2 / 3))
    answered = Spans(chosen={"threshold": 0.0}).with_chosen(targets[:2], outputs[:2])
    assert answered.chosen == {}  # as in SQuAD 1.1, where each question has an answer
    whole = np.array([kind.majority(targets)] * 6)
    assert kind.score("f1", targets, whole) == pytest.approx(0.5)  # no answer
    assert kind.score("f1", targets[:2], np.array([kind.majority(targets[:2])] * 2)) == pytest.approx(2 / 3)


def test_places_of_an_answer_are_pythons_and_bytes_of_one_character_stay_together():
    text = "Cafe\u0301 \U0001f600 S\u0302"
    offsets = np.array([[0, 5], [6, 7], [6, 7], [6, 7], [8, 10]])  # three tokens of the emoji's bytes
    windows = [
        SimpleNamespace(
            sequence_ids=[None, 0, None, 1, 1, 1, 1, 1], offsets=[(0, 0), (0, 1), (0, 0), *map(tuple, offsets)]
        )
    ]
    (target,) = Spans().targets_at_tokens([asked("q", text, at(6, "\U0001f600"))], SimpleNamespace(windows=[windows]))
    assert target.wanted.tolist() == [[4, 6]]
    logits = np.full((1, 1, 8, 2), LOWEST)
    logits[0, 0, [0, 3, 4, 5, 6, 7]] = 0
    logits[0, 0, 4, 0] = logits[0, 0, 6, 1] = 5
    (answer,) = Spans().predictions("qa", logits, [""], [target.passage])
    found = answer.as_json()
    assert (found["text"], found["start"], found["end"]) == ("😀", 6, 7) and text[6:7] == "😀"
    probability = np.exp(5) / (np.exp(5) + 5)
    assert found["score"] == pytest.approx(probability**2, abs=1e-6)


def test_the_loss_of_a_window_is_pytorchs_mean_of_both():
    source = np.random.default_rng(0)
    logits, targets = source.standard_normal((4, 7, 2)), source.integers(0, 7, (4, 2))
    by_torch = [
        torch.nn.functional.cross_entropy(torch.tensor(logits[..., k]), torch.tensor(targets[:, k])) for k in (0, 1)
    ]
    expected = float(sum(by_torch)) / 2
    assert Spans().loss(torch.tensor(logits), torch.tensor(targets)).item() == pytest.approx(expected, rel=1e-12)
    assert Spans().losses(logits, targets).mean() == pytest.approx(expected, rel=1e-12)


def test_rows_are_checked_when_they_are_read(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "q", "context": "in Rome", "answers": at(2, "Rome")}) + "\n")
    with pytest.raises(DataError, match=r"rows.jsonl:1: at 2 of the passage stands"):
        load_data(path, kind="spans")

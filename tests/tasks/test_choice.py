"""One of several candidates: PyTorch's loss and gradients, answers worked out by hand, and what users get wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from edgepeft.backbones.tokens import TokenBatch
from edgepeft.common.errors import DataError
from edgepeft.data.batches import encode
from edgepeft.data.columns import Columns
from edgepeft.data.parts import load_data, row_digest, task_data
from edgepeft.data.row_grouping import LOWEST, grouped, members, places_of
from edgepeft.data.rows import Row, read_rows
from edgepeft.data.training_loop.baselines import linear_head
from edgepeft.data.training_loop.engine import score_rows
from edgepeft.tasks.choice import Choice

KIND = Choice()
COUNTS = [2, 4, 3]  # candidates of three rows
RIGHT = [1, 3, 0]
TARGETS = np.array([*zip(RIGHT, COUNTS, strict=True)], np.int64)


def row(n: int = 2, label: object = 0, text: str = "t", line: int = 1) -> Row:
    candidates = tuple(f"c{i}" for i in range(n))
    return Row(text, None, Choice.label_text(label, "rows.jsonl"), "rows.jsonl", line, candidates=candidates)


def ragged(seed: int = 0) -> list[torch.Tensor]:
    """A row's scores each, far apart too."""
    source = np.random.default_rng(seed)
    return [torch.tensor(9 * source.standard_normal(n), dtype=torch.float32) for n in COUNTS]


def test_the_loss_is_pytorchs_cross_entropy_of_each_row_alone():
    rows = ragged()
    each = zip(rows, RIGHT, strict=True)
    expected = [torch.nn.functional.cross_entropy(own.double()[None], torch.tensor([i])) for own, i in each]
    flat = torch.cat(rows)[:, None].numpy()
    found = KIND.losses(grouped(flat, places_of(COUNTS)), TARGETS)
    np.testing.assert_allclose(found, [each.item() for each in expected], rtol=1e-12)


def test_a_rows_gradient_is_its_softmax_less_one_hot_and_padding_has_none():
    rows = ragged()
    logits = torch.full((3, 4, 1), LOWEST)
    for i, own in enumerate(rows):
        logits[i, : len(own), 0] = own
    logits.requires_grad_()
    KIND.loss(logits, torch.from_numpy(TARGETS)).backward()
    assert logits.grad is not None
    for i, own in enumerate(rows):
        expected = torch.softmax(own.double(), 0)
        expected[RIGHT[i]] -= 1
        torch.testing.assert_close(logits.grad[i, : len(own), 0].double(), expected / 3, rtol=1e-5, atol=1e-7)
        assert (logits.grad[i, len(own) :] == 0).all()


def test_rows_of_different_numbers_stand_together():
    assert places_of([2, 1, 3]).tolist() == [[0, 1, -1], [2, -1, -1], [3, 4, 5]]
    assert members(np.array([2, 1, 3]), [2, 0]) == [3, 4, 5, 0, 1]
    assert grouped(np.arange(6.0)[:, None], places_of([2, 1, 3]))[..., 0].tolist() == [
        [0, 1, LOWEST],
        [2, LOWEST, LOWEST],
        [3, 4, 5],
    ]


def test_knowing_nothing_costs_the_logarithm_of_how_many_there_are():
    rows = [row(n, i) for n, i in zip(COUNTS, RIGHT, strict=True)]
    encoded = encode(rows, KIND, Words(), 16, 0)  # type: ignore[arg-type]
    assert KIND.constant_loss(encoded.targets) == pytest.approx((math.log(2) + math.log(4) + math.log(3)) / 3)
    assert KIND.errors(TARGETS, np.array([1, 0, 0]))["figures"] == pytest.approx(
        {"accuracy": 2 / 3, "chance": (1 / 2 + 1 / 4 + 1 / 3) / 3}
    )
    assert KIND.majority(np.array([[1, 2], [0, 3], [1, 4]])) == 1
    assert KIND.row_errors(TARGETS, np.array([1, 0, 0])).tolist() == [0, 1, 0]


class Words:
    """Each word is a token of its length."""

    def encode(self, texts, max_length):
        ids = [[len(w) for part in text if part for w in part.split()][:max_length] for text in texts]
        width = max(map(len, ids))
        padded = [each + [0] * (width - len(each)) for each in ids]
        mask = [[1] * len(each) + [0] * (width - len(each)) for each in ids]
        return TokenBatch({"input_ids": np.array(padded), "attention_mask": np.array(mask)})


def test_a_batch_holds_whole_rows_each_candidate_with_the_text():
    rows = [
        Row("aa", None, "0", "f", 1, candidates=("b", "ccc dddd")),
        Row("aaaaa", "ee", "1", "f", 2, candidates=("f", "gg", "hhh")),  # the second text begins each candidate
    ]
    encoded = encode(rows, KIND, Words(), 8, 0)  # type: ignore[arg-type]
    assert (encoded.lengths, encoded.token_lengths, encoded.most) == ([3, 3], [2, 3, 3, 3, 3], 3)
    inputs, targets = encoded.batch([1, 0])
    assert inputs["input_ids"].tolist() == [[5, 2, 1], [5, 2, 2], [5, 2, 3], [2, 1, 0], [2, 3, 4]]
    assert targets.tolist() == [[1, 3], [0, 2]]
    places = encoded.places([1, 0])
    assert places is not None and places.tolist() == [[0, 1, 2], [3, 4, -1]]


def test_answers_go_to_their_own_rows_in_whatever_batches():
    source = np.random.default_rng(0)
    counts, texts = source.integers(2, 6, 150), ["w " * n for n in source.integers(1, 9, 150)]
    right = [int(source.integers(n)) for n in counts]
    rows = [row(n, i, text) for n, i, text in zip(counts, right, texts, strict=True)]
    encoded = encode(rows, KIND, Words(), 8, 0)  # type: ignore[arg-type]
    best = np.concatenate([np.arange(n) == i for n, i in zip(counts, right, strict=True)])[:, None].astype(np.float32)
    best[0] = 1 - best[0]  # of one row, the other one or both alike: the first of equals is picked
    scored = score_rows(lambda chosen: best[encoded.token_rows(chosen)], encoded, KIND, "accuracy")
    wrong = int(scored.outputs[0] != right[0])
    assert scored.score == pytest.approx(1 - wrong / 150)


def test_the_linear_head_is_least_squares_on_each_candidate_less_its_rows_mean():
    """Right candidates lie along one direction, beside much that only tells rows apart."""
    source, direction = np.random.default_rng(0), np.array([1.0, -1.0, 0.5])

    def made(n):
        counts = source.integers(2, 5, n)
        right = [int(source.integers(k)) for k in counts]
        states = [
            source.standard_normal(3) * 3
            + 0.3 * source.standard_normal((k, 3))
            + np.outer(np.arange(k) == i, direction)
            for k, i in zip(counts, right, strict=True)
        ]
        return KIND.baseline_features(states, counts), np.array([*zip(right, counts, strict=True)])

    parts = {name: made(n) for name, n in (("train", 300), ("eval", 50), ("test", 100))}
    states, targets = ({name: part[i] for name, part in parts.items()} for i in range(2))
    _, found = linear_head(states, targets, KIND, "accuracy")
    assert KIND.score("accuracy", targets["test"], found) > 0.9


def test_an_answer_is_a_candidate_with_the_softmax_of_its_row():
    given = [
        {"sentence1": "t", "candidates": ["red", "blue"]},
        {"sentence1": "t", "candidates": ["a", "b", "c"]},
    ]
    logits = np.array([[[0.0], [math.log(3)], [LOWEST]], [[math.log(2)], [0.0], [0.0]]], np.float32)
    first, second = KIND.predictions("copa", logits, ["", "odd"], KIND.prediction_context(given, [], None))
    assert first.as_json() == {
        "task": "copa",
        "label": "blue",
        "index": 1,
        "score": pytest.approx(0.75),
        "scores": pytest.approx({"red": 0.25, "blue": 0.75}),
    }
    assert second.as_json()["scores"] == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25}) and second.note == "odd"
    assert [each.value for each in KIND.predictions("copa", logits, ["", ""])] == ["1", "0"]


def test_decisions_are_compared_row_by_row_and_of_a_check_file_two_by_two():
    reference = np.array([[[1.0], [2.0], [LOWEST]], [[3.0], [1.0], [0.0]], [[1.0], [1.0], [LOWEST]]])
    other = reference.copy()
    other[2] = [[0.0], [9.0], [LOWEST]]  # where the reference cannot decide, nothing counts
    assert KIND.agreement(reference, other, None) == (1.0, 1)
    other[0] = [[2.0], [1.0], [LOWEST]]
    assert KIND.agreement(reference, other, None) == (0.5, 1)
    flat = np.array([[0.0], [1.0], [5.0], [3.0]])
    assert KIND.agreement(flat, np.array([[1.0], [0.0], [5.0], [3.0]]), None) == (0.5, 0)


def written(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def read(path: Path) -> list[Row]:
    columns = KIND.columns(Columns())
    return list(read_rows(path, labels=True, columns=columns, label_of=KIND.label_text))


@pytest.mark.parametrize("label", [1, "blue", " blue ", "1", 1.0])
def test_the_right_one_is_a_text_or_an_index(tmp_path, label):
    path = written(tmp_path / "rows.jsonl", {"sentence1": "t", "candidates": ["red", "blue"], "label": label})
    (found,) = read(path)
    assert (KIND.expected(found), KIND.targets([found]).tolist()) == ("blue", [[1, 2]])


def test_a_text_that_is_a_number_is_a_candidate_first_and_a_number_never_is(tmp_path):
    rows = [{"sentence1": "t", "candidates": ["1", "0"], "label": label} for label in ("1", 1)]
    found = read(written(tmp_path / "rows.jsonl", *rows))
    assert [KIND.expected(each) for each in found] == ["1", "0"]


@pytest.mark.parametrize(
    "table",
    [
        'sentence1,candidates,label\nt,"[""red"", ""blue""]",blue\n',
        "sentence1,choice2,choice1,choice3,label\nt,blue,red,,blue\n",
        "sentence1,ending0,ending1,label\nt,red,blue,1\n",
    ],
)
def test_tables_have_a_list_or_numbered_columns(tmp_path, table):
    (tmp_path / "rows.csv").write_text(table)
    (found,) = read(tmp_path / "rows.csv")
    assert (found.candidates, KIND.expected(found)) == (("red", "blue"), "blue")


@pytest.mark.parametrize(
    ("candidates", "label", "said"),
    [
        (["a"], 0, "the row has one candidate"),
        ([], 0, "the row has no candidate"),
        (["a", "b", "a "], 0, 'the candidate "a " stands there twice'),
        (["a", 3], 0, "candidate 1 must be a text"),
        (["a", ""], 0, "candidate 1 must be a text that is not empty"),
        ("a, b", 0, 'candidates is a list of texts; found "a, b"'),
        (["a", "b"], 2, "the label 2 is none of the row's 2 candidates"),
        (["a", "b"], -1, "its index: 0 to 1"),
        (["a", "b"], 0.5, 'the label "0.5" is none'),
        (["a", "b"], "c", 'the label "c" is none of the row\'s 2 candidates, ["a", "b"]'),
        (["a", "b"], True, 'the label "true" is none'),
        (None, 0, "no candidates to pick from"),
    ],
)
def test_what_is_wrong_is_said_with_the_row(tmp_path, candidates, label, said):
    good = {"sentence1": "t", "candidates": ["a", "b"], "label": 0}
    bad = {"sentence1": "t", "label": label} | ({} if candidates is None else {"candidates": candidates})
    path = written(tmp_path / "rows.jsonl", good, bad)
    with pytest.raises(DataError) as caught:
        load_data(path, kind="choice")
    assert str(caught.value).startswith(f"{path}:2: ") and said in str(caught.value)


def test_numbered_columns_of_two_names_are_not_guessed_at(tmp_path):
    path = written(
        tmp_path / "rows.jsonl", {"sentence1": "t", "choice1": "a", "choice2": "b", "option1": "c", "label": 0}
    )
    with pytest.raises(DataError, match=r"rows\.jsonl:1: numbered columns of several names \(choice, option\)"):
        read(path)


@pytest.mark.parametrize("given", ["t", ("t", "b"), {"sentence1": "t"}, {"sentence1": "t", "candidates": ["a"]}])
def test_a_caller_without_candidates_is_told_the_row(given):
    with pytest.raises(DataError, match=r"row 4: .*candidate"):
        KIND.token_rows(given, "row 4")


def test_a_mapping_may_have_its_candidates_in_numbered_columns_as_a_file_has_them():
    given = {"sentence1": "t", "sentence2": "s", "choice2": "b", "choice1": "a", "choice3": None}
    assert KIND.token_rows(given, "row 4") == [("t", "s a"), ("t", "s b")]


def test_rows_that_differ_in_their_candidates_alone_are_different_rows():
    assert row_digest(row(2)) != row_digest(row(3))
    data = task_data([row(2, i % 2, f"t{i}") for i in range(20)], kind="choice")
    assert (data.labels, data.pairs, len(data.train)) == (None, True, 16)

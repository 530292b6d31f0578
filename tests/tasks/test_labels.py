"""Several labels at once: scikit-learn's figures, thresholds found by trying all, and what users get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from edgepeft.common.errors import DataError
from edgepeft.data.columns import Columns
from edgepeft.data.parts import task_data
from edgepeft.data.rows import Row, read_rows
from edgepeft.tasks.base import kind_from_card
from edgepeft.tasks.labels import Labels

NAMES = ("angry", "calm", "fast", "never")
N = 60


def row(*names: str, line: int = 1, text: str = "t") -> Row:
    return Row(text, None, Labels.label_text(list(names), "rows.jsonl"), "rows.jsonl", line)


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Targets and logits that know something of them; some logits of a row are equal, no row has the last label."""
    source = np.random.default_rng(0)
    targets = (source.random((N, len(NAMES))) < [0.5, 0.3, 0.1, 0.0]).astype(np.float32)
    logits = np.round(2 * targets - 1 + source.standard_normal(targets.shape), 1).astype(np.float32)
    return targets, logits


@pytest.mark.parametrize("thresholds", [None, [0.3, 0.6, 0.2, 0.5]])
def test_every_figure_is_scikit_learns(drawn, thresholds):
    targets, logits = drawn
    kind = Labels(NAMES, chosen={} if thresholds is None else {"thresholds": thresholds})
    answers = 1 / (1 + np.exp(-logits.astype(float))) > (thresholds or 0.5)
    theirs = {
        "micro_f1": metrics.f1_score(targets, answers, average="micro", zero_division=0),
        "macro_f1": metrics.f1_score(targets, answers, average="macro", zero_division=0),
        "exact_match": metrics.accuracy_score(targets, answers),
        "ranking": 1 - metrics.label_ranking_loss(targets, logits),
    }
    assert {name: kind.score(name, targets, logits) for name in kind.metrics} == pytest.approx(theirs)
    found = kind.errors(targets, logits)
    each = metrics.precision_recall_fscore_support(targets, answers, zero_division=0)
    for i, name in enumerate(NAMES):
        assert list(found["by_class"][name].values()) == pytest.approx([column[i] for column in each])
    assert found["figures"]["ranking_loss"] == pytest.approx(metrics.label_ranking_loss(targets, logits))


def test_rows_with_no_label_and_rows_with_all_are_scored():
    kind, targets = Labels(("a", "b")), np.array([[0, 0], [1, 1], [0, 0]], np.float32)
    logits = np.array([[-1, -2], [1, 2], [3, -1]], np.float32)
    assert kind.score("ranking", targets, logits) == 1.0  # no pair that could be wrong
    assert kind.score("exact_match", targets, logits) == pytest.approx(2 / 3)
    assert kind.score("micro_f1", targets[:1], logits[:1]) == 0.0  # as scikit-learn's zero_division=0
    assert kind.plain(logits) == [[], ["a", "b"], ["a"]]


def test_the_threshold_of_a_label_is_the_best_of_all(drawn):
    targets, logits = drawn
    chosen = Labels(NAMES).with_chosen(targets, logits)
    for i in range(3):
        levels = np.append(
            np.unique(logits[:, i]), -np.inf
        )  # a threshold between two of them decides as the lower one does
        tried = [metrics.f1_score(targets[:, i], logits[:, i] > level) for level in levels]
        answers = chosen.decided(logits)[:, i]
        assert metrics.f1_score(targets[:, i], answers) == pytest.approx(max(tried))
    assert chosen.chosen["thresholds"][3] == 0.5  # no row has it
    assert chosen.score("macro_f1", targets, logits) >= Labels(NAMES).score("macro_f1", targets, logits)


def test_the_loss_is_pytorchs_and_does_not_overflow(drawn):
    targets, logits = drawn
    kind, far = Labels(NAMES), logits * 300
    theirs = torch.nn.functional.binary_cross_entropy_with_logits
    for each in (logits, far):
        tensors = torch.from_numpy(each), torch.from_numpy(targets)
        assert kind.loss(*tensors).item() == pytest.approx(theirs(*tensors).item(), rel=1e-6)
        assert kind.losses(each, targets).mean() == pytest.approx(theirs(*tensors).item(), rel=1e-6)


def test_answers_have_the_labels_above_their_thresholds():
    kind = Labels(("a", "b"), chosen={"thresholds": [0.2, 0.9]})
    logits = np.log(np.array([[0.3, 0.8], [0.1, 0.95]]) / (1 - np.array([[0.3, 0.8], [0.1, 0.95]])))
    one, other = kind.predictions("t", logits.astype(np.float32), ["", "odd"])
    assert one.as_json() == {"task": "t", "labels": ["a"], "scores": {"a": 0.3, "b": 0.8}}
    assert other.as_json()["labels"] == other.value == ["b"] and other.as_json()["note"] == "odd"


def test_answers_in_common_are_compared_but_where_a_threshold_is_near():
    kind, reference = Labels(("a", "b")), np.array([[3, -3], [3, 3], [1e-5, 3], [-3, -3]], np.float32)
    assert kind.agreement(reference, reference, 1e-4) == (1.0, 1)
    moved = reference * [1, -1]  # the second label changes in every row: 1/2, 1/2, undecided, 0 in common
    assert kind.agreement(reference, moved, 1e-4).share == pytest.approx(1 / 3)


def test_the_majority_is_the_constant_answer_of_the_best_micro_f1():
    source = np.random.default_rng(1)
    kind, targets = Labels(NAMES), (source.random((N, 4)) < [0.2, 0.6, 0.35, 0.1]).astype(np.float32)
    constant = [[bool(code >> i & 1) for i in range(4)] for code in range(16)]
    every = [np.broadcast_to(answer, targets.shape) for answer in constant]
    best = max(metrics.f1_score(targets, answer, average="micro", zero_division=0) for answer in every)
    ours = np.broadcast_to(kind.majority(targets), targets.shape)
    assert kind.score("micro_f1", targets, ours) == pytest.approx(best)
    assert kind.row_errors(targets[:1], np.zeros((1, 4)) - 1) == targets[:1].sum()


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("joy", 'the label is a list of names, \\[\\] for none; found "joy".*--label-separator'),
        (None, "the label is a list of names"),
        (["a", "b", "a"], "the label 'a' stands twice"),
        (["1", 1], "the label '1' stands twice"),
        ([""], "the label in the list is empty"),
        ([["a"]], "the label in the list must be a text or a number"),
    ],
)
def test_what_is_no_list_of_names_is_refused_with_its_line(label, said):
    with pytest.raises(DataError, match=f"rows.jsonl:7: {said}"):
        Labels.label_text(label, "rows.jsonl:7")


def test_a_tables_cell_is_split_where_it_is_said(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('sentence1,label\nx,"b; a"\ny,\nz,a\n')
    read = read_rows(path, labels=True, columns=Columns(separator=";"), label_of=Labels.label_text)
    assert [Labels(("a", "b")).expected(each) for each in read] == [["a", "b"], [], ["a"]]
    with pytest.raises(DataError, match=r"rows.csv:2: the label is a list .* --label-separator"):
        list(read_rows(path, labels=True, label_of=Labels.label_text))


def test_rows_of_every_label_are_divided_and_odd_ones_are_named():
    rows = [row(*names, line=i, text=f"t{i}") for i, names in enumerate([("a",), ("b",), ("a", "rare"), ()] * 12)]
    data = task_data(rows, kind="labels")
    assert data.labels == ("a", "b", "rare") and data.task_kind.name == "labels"
    for part in (data.train, data.eval, data.test):
        assert {each.label for each in part} == {'["a"]', '["b"]', '["a","rare"]', "[]"}
    with pytest.raises(DataError, match=r"rows.jsonl:99: label 'odd' was not seen in rows.jsonl, which has a, b, rare"):
        task_data(rows, eval=[row("a", "odd", line=99)], kind="labels")
    with pytest.raises(DataError, match="no row has a label: every list is empty"):
        task_data([row(line=i) for i in range(9)], kind="labels")


@pytest.mark.parametrize("thresholds", [[0.5], [0.5, 1.0], ["a", 0.5], 0.5, [0.5, float("nan")]])
def test_thresholds_of_a_foreign_card_are_checked(thresholds):
    with pytest.raises(ValueError, match="thresholds lie between 0 and 1, one for each of 2 labels"):
        kind_from_card("labels", ["a", "b"], "mean", chosen={"thresholds": thresholds})

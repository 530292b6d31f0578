"""Errors by class against scikit-learn's own figures, and a table worked out by hand."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn import metrics

from edgepeft.data.by_class import (
    WORST,
    class_rows,
    headline_rows,
    labels_without_rows,
    matrix,
    mislabelled,
    mistakes,
    p_value,
    row_lines,
    score_text,
    without_texts,
    worst_of,
    write_confusion,
)
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.regression import Regression

NAMES = ("a", "b", "c", "never")


def errors_of(expected, answers, names):
    kind = Classification(tuple(names))
    return kind.errors(*(np.array([kind.labels.index(label) for label in each]) for each in (expected, answers)))


def averaged(metric, names):
    return Classification(names).metric_of(metric).averaged


def test_precision_recall_f1_support_and_the_matrix_are_scikit_learns():
    source = np.random.default_rng(0)
    expected, answers = ([NAMES[i] for i in source.integers(0, 3, 200)] for _ in range(2))
    found = errors_of(expected, answers, NAMES)
    theirs = metrics.precision_recall_fscore_support(expected, answers, labels=NAMES, zero_division=0)
    for i, name in enumerate(NAMES):
        assert list(found["by_class"][name].values()) == pytest.approx([column[i] for column in theirs])
    assert list(found["macro"].values()) == pytest.approx([column.mean() for column in theirs[:3]])
    matrix = [[found["confusion"][one].get(other, 0) for other in NAMES] for one in NAMES]
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(expected, answers, labels=NAMES))


def test_residuals_are_answers_less_labels():
    found = Regression().errors([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 1.0, 4.0])["residuals"]  # off by 1, 0, -2, 0
    assert found["mean"] == -0.25 and found["mean_absolute"] == 0.75 and found["root_mean_square"] == np.sqrt(5 / 4)
    assert (found["absolute_p50"], found["absolute_p100"]) == (0.5, 2.0)


def test_a_table_has_the_worst_class_first_and_leaves_out_labels_that_no_row_has():
    few = errors_of(["a", "a", "b", "b"], ["a", "b", "b", "b"], ("a", "b", "never"))
    assert class_rows(few) == (
        ["label", "precision", "recall", "F1", "rows"],
        [["a", "1.000", "0.500", "0.667", "2"], ["b", "0.667", "1.000", "0.800", "2"]],
    )
    assert labels_without_rows(few) == ["never"]


def test_a_matrix_is_in_the_order_of_the_labels_and_has_what_is_only_answered():
    found = errors_of(["z", "z", "a", "a"], ["z", "only answered", "z", "a"], ("z", "never", "only answered", "a"))
    assert matrix(found["confusion"]) == (["z", "only answered", "a"], [[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    assert mistakes(found["confusion"]) == [("z", "only answered", 1), ("a", "z", 1)]


def test_a_matrix_is_written_as_csv_and_as_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install edgepeft[train]")
    found = errors_of(["a,1", "b"], ["b", "b"], ("a,1", "b"))
    assert write_confusion(found["confusion"], "mood", tmp_path) == ["confusion.csv", "confusion.png", "confusion.svg"]
    with (tmp_path / "confusion.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [["label \\ answer", "a,1", "b"], ["a,1", "0", "1"], ["b", "0", "1"]]
    picture = (tmp_path / "confusion.svg").read_text()
    for words in (">a,1<", ">answer<", "share of the label's rows", "2 rows"):
        assert words in picture
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_are_rounded_as_people_write_them():
    assert [score_text(0.43349), score_text(1), score_text(None)] == ["0.433", "1.000", "-"]
    assert [p_value(0.0004), p_value(0.001), p_value(0.0311)] == ["< 0.001", "0.001", "0.031"]


def test_the_headline_has_the_baselines_beside_it():
    found = [{"metric": "macro_f1", "score": 0.5, "low": 0.41, "high": 0.6}]
    found += [{"metric": "bleu", "score": 0.25, "low": None, "high": None}]
    baselines = {"majority": {"scores": {"macro_f1": 0.2}, "p": 0.00004}}
    assert headline_rows(found, baselines) == (
        ["figure", "score", "95 % interval", "majority"],
        [
            ["macro F1", "0.500", "0.410 to 0.600", "0.200"],
            ["bleu", "0.250", "-", "-"],
            ["McNemar's p", "", "", "< 0.001"],
        ],
    )


def test_a_row_is_told_with_its_probabilities_or_its_loss():
    row = {"row": "a:1", "text": "w7", "label": "x", "answer": "y", "loss": 2.5}
    assert row_lines([row]) == [("a:1: label x, answer y, loss 2.500", "w7")]
    known = {**row, "label_probability": 0.0002, "answer_probability": 0.9}
    assert row_lines([known]) == [("a:1: label x (p < 0.001), answer y (p 0.900)", "w7")]


def test_what_is_handed_on_has_no_texts():
    rows = [{"row": f"a:{i}", "text": "secret", "label": "x", "loss": 1.0} for i in range(WORST + 2)]
    doubted = [(i, {"label": "x", "likely": "y"}) for i in range(WORST + 2)]
    errors = {"worst": rows[:1], "macro": {"f1": 1.0}, **mislabelled(doubted, rows.__getitem__)}
    assert errors["mislabelled_rows"] == WORST + 2 and len(errors["mislabelled"]) == WORST
    assert errors["mislabelled"][1] == {"row": "a:1", "text": "secret", "label": "x", "likely": "y"}
    kept = without_texts(errors)
    assert "secret" not in str(kept) and kept["worst"][0]["row"] == "a:0" and kept["macro"] == {"f1": 1.0}


def test_the_rows_of_the_highest_loss_are_listed():
    listed = worst_of({"row": str(i), "loss": i % 40} for i in range(100))
    assert len(listed) == WORST and [each["loss"] for each in listed[:3]] == [39, 39, 38]


def test_a_metric_says_how_it_averages():
    assert averaged("f1", ("a", "b", "c")).startswith("macro mean")
    assert averaged("f1", ("no", "yes")) == averaged("f1:yes", ("no", "yes")) == "of the label 'yes' alone"
    assert averaged("f1:c", ("a", "b", "c")) == "of the label 'c' alone"
    assert averaged("accuracy", ("a", "b")) == "share of rows that are right"

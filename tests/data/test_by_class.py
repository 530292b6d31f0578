"""Errors by class against scikit-learn's own figures, and a table worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from edgepeft.data.by_class import WORST, class_rows, worst_of
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.regression import Regression

NAMES = ("a", "b", "c", "never")


def errors_of(expected, answers, names):
    kind = Classification(tuple(names))
    return kind.errors(*(np.array([kind.labels.index(label) for label in each]) for each in (expected, answers)))


def averaged(metric, names):
    return Classification(names).averaged(metric)


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


def test_a_table_has_the_worst_class_first_and_what_it_is_taken_for():
    few = errors_of(["a", "a", "b", "b"], ["a", "b", "b", "b"], ("a", "b"))
    assert class_rows(few) == (
        ["label", "precision", "recall", "F1", "rows", "as a", "as b"],
        [["a", "1.000", "0.500", "0.667", "2", "1", "1"], ["b", "0.667", "1.000", "0.800", "2", "0", "2"]],
    )
    many = [f"l{i}" for i in range(10)]
    header, rows = class_rows(errors_of(many, ["l1", *many[1:]], many))
    assert header[-1] == "most often taken for"
    assert rows[0] == ["l0", "0.000", "0.000", "0.000", "1", "l1 (1)"] and rows[-1][-1] == ""


def test_the_rows_of_the_highest_loss_are_listed():
    listed = worst_of({"row": str(i), "loss": i % 40} for i in range(100))
    assert len(listed) == WORST and [each["loss"] for each in listed[:3]] == [39, 39, 38]


def test_a_metric_says_how_it_averages():
    assert averaged("f1", ("a", "b", "c")).startswith("macro mean")
    assert averaged("f1", ("no", "yes")) == averaged("f1:yes", ("no", "yes")) == "of the label 'yes' alone"
    assert averaged("f1:c", ("a", "b", "c")) == "of the label 'c' alone"
    assert averaged("accuracy", ("a", "b")) == "share of rows that are right"

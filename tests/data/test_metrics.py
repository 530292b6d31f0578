"""Metrics on values worked out by hand from their definitions."""

import numpy as np
import pytest
from sklearn import metrics

from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.regression import Regression


def compute(name, labels, guesses, names=None):
    """Of texts or numbers."""
    if isinstance(labels[0], float):
        return Regression().score(name, np.array(labels, np.float32), np.array(guesses, np.float32))
    kind = Classification(tuple(names or sorted({*labels, *guesses})))
    targets, outputs = (np.array([kind.labels.index(label) for label in each]) for each in (labels, guesses))
    return kind.score(name, targets, outputs)


# tp 2, fn 1, fp 1, tn 2 for "1"
TRUE, GUESS = ["1", "1", "1", "0", "0", "0"], ["1", "1", "0", "1", "0", "0"]


def test_accuracy_is_the_share_of_equal_labels():
    assert compute("accuracy", TRUE, GUESS) == pytest.approx(4 / 6)


def test_f1_is_that_of_the_positive_label():
    labels, guesses = ["1", "1", "1", "0"], ["1", "0", "0", "0"]
    assert compute("f1", labels, guesses) == pytest.approx(2 * 1 / (2 * 1 + 0 + 2))  # 2 tp / (2 tp + fp + fn)
    assert compute("f1:0", labels, guesses) == pytest.approx(2 * 1 / (2 * 1 + 2 + 0))


def test_a_denying_name_is_not_the_positive_label():
    swap = {"1": "equivalent", "0": "not_equivalent"}
    labels, guesses = ["1", "1", "1", "0"], ["1", "0", "0", "0"]
    assert compute("f1", [swap[i] for i in labels], [swap[i] for i in guesses]) == pytest.approx(0.5)


def test_f1_of_three_labels_is_their_mean_without_those_that_stand_nowhere():
    labels, guesses = ["a", "a", "b", "b"], ["a", "b", "b", "b"]
    of_a, of_b = 2 / 3, 4 / 5
    assert compute("f1", labels, guesses, names=("a", "b", "c")) == pytest.approx((of_a + of_b) / 2)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_f1_and_matthews_are_scikit_learns(n):
    source = np.random.default_rng(n)
    labels, guesses = source.integers(0, n, 60), source.integers(0, n, 60)
    labels[:40] = guesses[:40]
    labels[labels == n - 1] = 0  # the last stands in answers alone
    kind = Classification(tuple(f"l{i}" for i in range(n + 1)))  # and one nowhere
    theirs = {
        "macro_f1": metrics.f1_score(labels, guesses, average="macro", zero_division=0),
        "f1": metrics.f1_score(labels, guesses, average="macro", zero_division=0),
        "f1:l1": metrics.f1_score(labels, guesses, labels=[1], average="macro", zero_division=0),
        "matthews": metrics.matthews_corrcoef(labels, guesses),
        "accuracy": metrics.accuracy_score(labels, guesses),
    }
    assert {name: kind.score(name, labels, guesses) for name in theirs} == pytest.approx(theirs)


def test_f1_knows_the_positive_label_where_only_the_other_occurs():
    assert compute("f1", ["ham", "ham"], ["ham", "ham"], names=("ham", "spam")) == 0.0


def test_matthews_equals_its_formula():
    tp, tn, fp, fn = 2, 2, 1, 1
    expected = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert compute("matthews", TRUE, GUESS) == pytest.approx(expected)


def test_pearson_is_linear_and_spearman_only_counts_ranks():
    labels, guesses = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    covariance, deviations = 25.0, (5.0 * 129.0) ** 0.5  # sums over the centred values
    assert compute("pearson", labels, guesses) == pytest.approx(covariance / deviations)
    assert compute("spearman", labels, guesses) == pytest.approx(1.0)
    assert compute("pearson_spearman", labels, guesses) == pytest.approx((1 + covariance / deviations) / 2)


def test_a_correlation_with_a_constant_is_zero_and_not_nan():
    assert compute("pearson_spearman", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == 0.0


def test_every_metric_gives_one_for_perfect_predictions():
    for kind, values in ((Classification, ["a", "b", "b"]), (Regression, [1.0, 2.0, 5.0])):
        for name in kind.metrics:
            assert compute(name, values, values) == pytest.approx(1.0)


def test_the_defaults_score_their_kind_of_task():
    for kind in (Classification(("a", "b")), Regression()):
        kind.metric_of(kind.default_metric)


@pytest.mark.parametrize("asked", ["acuracy", "accuracy:a", ""])
def test_an_unknown_metric_is_refused_with_the_known_ones(asked):
    with pytest.raises(UnknownName, match="accuracy"):
        Classification(()).metric_of(asked)


def test_a_metric_of_the_other_kind_is_refused_with_those_that_fit():
    with pytest.raises(UsageError, match="pearson, spearman, pearson_spearman"):
        Regression().metric_of("f1")
    with pytest.raises(UnknownName, match="spam"):
        Classification(("ham", "spam")).metric_of("f1:spma")


def test_matthews_of_answers_that_are_all_alike_is_zero():
    assert compute("matthews", TRUE, ["1"] * 6, names=("0", "1")) == 0.0

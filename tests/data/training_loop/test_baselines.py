"""Baselines against scikit-learn's and scipy's own, and tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import Ridge, RidgeClassifier

from edgepeft.data.training_loop import baselines
from edgepeft.data.training_loop.baselines import (
    compare_answers,
    linear_head,
    mcnemar,
    too_few_to_tell,
    unbeaten_baselines,
)
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.regression import Regression

N, D, LABELS = 90, 6, ("a", "b", "c")
KIND = Classification(LABELS)


@pytest.fixture
def drawn():
    """States of three parts, and their classes by a noisy linear rule."""
    source = np.random.default_rng(0)
    states = {part: source.standard_normal((N, D)) + 3 for part in ("train", "eval", "test")}
    rule = source.standard_normal((D, 3))
    noisy = {part: (x - 3) @ rule + source.standard_normal((N, 3)) for part, x in states.items()}
    return {part: x.astype(np.float32) for part, x in states.items()}, noisy


def alpha_of(x, strength):
    return strength * np.square(x - x.mean(0)).sum(0).mean()


@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_the_linear_head_is_scikit_learns_ridge(drawn, monkeypatch, strength):
    states, noisy = drawn
    monkeypatch.setattr(baselines, "_STRENGTHS", [strength])
    x = states["train"].astype(np.float64)
    classes = {part: values.argmax(1) for part, values in noisy.items()}
    theirs = RidgeClassifier(alpha=alpha_of(x, strength)).fit(x, classes["train"]).predict(states["test"])
    np.testing.assert_array_equal(linear_head(states, classes, KIND, "accuracy")[1], theirs)
    numbers = {part: values[:, 0].astype(np.float32) for part, values in noisy.items()}
    fitted = Ridge(alpha=alpha_of(x, strength)).fit(x, numbers["train"].astype(np.float64))
    _, ours = linear_head(states, numbers, Regression(), "pearson")
    np.testing.assert_allclose(ours, fitted.predict(states["test"]), rtol=1e-6)


def test_the_strength_is_the_one_that_the_evaluation_rows_like_best(drawn):
    states, noisy = drawn
    classes = {part: values.argmax(1) for part, values in noisy.items()}
    x = states["train"].astype(np.float64)
    fits = [RidgeClassifier(alpha=alpha_of(x, s)).fit(x, classes["train"]) for s in baselines._STRENGTHS]
    best = max(fits, key=lambda fit: fit.score(states["eval"], classes["eval"]))
    np.testing.assert_array_equal(linear_head(states, classes, KIND, "accuracy")[1], best.predict(states["test"]))


def test_the_majority_is_the_most_frequent_label_or_the_mean():
    assert KIND.majority(np.array([2, 0, 2, 1])) == 2
    assert Regression().majority(np.array([1.0, 2.0, 6.0], np.float32)) == 3.0


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (9, 1), (6, 6), (3, 20), (400, 300)])
def test_mcnemars_p_is_that_of_scipys_binomial_test(won, lost):
    expected = binomtest(won, won + lost, 0.5).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected)


def test_rows_that_only_one_gets_right_are_counted():
    expected, ours, other = (np.array(v) for v in ([0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 1]))
    found = compare_answers(
        KIND.row_errors(expected, ours), KIND.row_errors(expected, other)
    )  # ours alone: rows 0, 1, 2, 3, 6; the other alone: 4
    assert (found["only_delta"], found["only_this"]) == (5, 1)
    assert found["p"] == pytest.approx(2 * 7 / 64) and not found["beaten"]
    assert compare_answers(np.zeros(10), np.ones(10))["beaten"]
    assert not compare_answers(np.ones(10), np.zeros(10))["beaten"]
    values = np.array([1.0, 2.0, 3.0])
    answers = np.array([1.1, 2.0, 9.0]), np.array([1.2, 2.0, 3.5])
    numbers = compare_answers(*(Regression().row_errors(values, each) for each in answers))
    assert (numbers["only_delta"], numbers["only_this"]) == (1, 1)


def test_what_is_not_beaten_is_said_with_its_figures():
    lost = {"test": 0.5, "only_delta": 3, "only_this": 2, "p": 1.0, "beaten": False}
    metrics = {
        "metric": "accuracy",
        "test": 0.6,
        "n_test": 10,
        "baselines": {"majority": lost, "other": {"beaten": True}},
    }
    ((name, sentence),) = unbeaten_baselines(metrics)
    assert name == "majority" and "0.600 against 0.500, 3 of 10 test rows right here alone and 2 there" in sentence
    assert too_few_to_tell(metrics)  # five rows: 2 / 2^5 is above 0.05, whoever has them all
    assert not too_few_to_tell({"baselines": {"majority": {**lost, "only_this": 3}}})
    assert not list(unbeaten_baselines({"metric": "accuracy"}))  # of a task trained by an earlier version

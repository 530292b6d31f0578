"""Temperature, calibration error, coverage and risk: by scipy, by hand, and by what they guarantee."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binom

from edgepeft.common.errors import UsageError
from edgepeft.tasks._conformal import (
    COLDEST,
    DOUBT,
    HOTTEST,
    binned,
    calibration_error,
    coverage_threshold,
    fitted_temperature,
    guarantee_of,
    needed_for_coverage,
    needed_for_risk,
    risk_threshold,
)
from edgepeft.tasks.base import kind_named

CLASSIFICATION = kind_named("classification")
NAMES = ("a", "b", "c")


def overconfident(n: int, seed: int, factor: float = 3.0, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits ``factor`` times those that the labels are drawn by."""
    source = np.random.default_rng(seed)
    true = 1.5 * source.standard_normal((n, columns))
    targets = np.array([source.choice(columns, p=each) for each in softmax(true, 1)])
    return (factor * true).astype(np.float32), targets


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0, 8.0])
def test_the_temperature_is_scipys_minimum_of_the_likelihood(factor):
    logits, targets = overconfident(400, 0, factor)

    def loss(beta: float) -> float:
        return -log_softmax(beta * logits.astype(np.float64), 1)[np.arange(400), targets].mean()

    by_scipy = minimize_scalar(loss, bounds=(1 / HOTTEST, 1 / COLDEST), method="bounded", options={"xatol": 1e-10})
    found = fitted_temperature(logits, targets)
    assert found.bound is None
    # A minimum is found to about the square root of its value's precision.
    assert 1 / found.value == pytest.approx(by_scipy.x, rel=1e-6)
    assert found.value == pytest.approx(factor, rel=0.25)  # by which the labels were drawn


def test_where_every_row_is_right_the_temperature_stays_one():
    logits, _ = overconfident(20, 1)
    assert fitted_temperature(logits, logits.argmax(1)) == (1.0, COLDEST)
    assert fitted_temperature(1e4 * logits, logits.argmax(1)) == (1.0, COLDEST)
    assert fitted_temperature(np.zeros((9, 2), np.float32), np.zeros(9, int)) == (1.0, COLDEST)


def test_where_every_row_is_wrong_it_is_the_hottest():
    logits, _ = overconfident(20, 1)
    assert fitted_temperature(logits, logits.argmin(1)) == (HOTTEST, HOTTEST)


def test_calibration_error_of_rows_by_hand():
    # Bins end at 1/15, 2/15, ...: 0.4 ends the sixth, 0.41 is in the seventh.
    confidences, right = np.array([0.4, 0.35, 0.41, 1.0, 0.99]), np.array([True, False, True, False, True])
    bins = binned(confidences, right)
    assert [each["rows"] for each in bins] == [0] * 5 + [2, 1] + [0] * 7 + [2]
    assert (bins[5]["confidence"], bins[5]["accuracy"]) == (pytest.approx(0.375), 0.5)
    expected = (2 * abs(0.5 - 0.375) + abs(1 - 0.41) + 2 * abs(0.5 - 0.995)) / 5
    assert calibration_error(bins) == pytest.approx(expected)


def test_the_quantile_is_the_one_with_the_correction():
    p = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    # n = 9: ceil(10 x 0.8) = 8, the 8th smallest of 1 - p is 0.8; ceil(9 x 0.8) would be the same, that of 0.7 not.
    assert coverage_threshold(p, 0.8) == 0.2
    assert coverage_threshold(p, 0.71) == 0.2  # ceil(10 x 0.71) = 8, ceil(9 x 0.71) = 7
    assert coverage_threshold(p, 0.9) == 0.1
    # ceil(100 x 0.55) in floats is 56.
    assert coverage_threshold(np.arange(99) / 100, 0.55) == pytest.approx(0.44)


@pytest.mark.parametrize(("coverage", "n"), [(0.99, 99), (0.95, 19), (0.9, 9), (0.5, 1), (0.55, 2)])
def test_rows_that_a_coverage_needs(coverage, n):
    assert needed_for_coverage(coverage) == n


def test_coverage_holds_over_many_draws_and_not_without_the_correction():
    """Marginal coverage of n exchangeable continuous scores is ceil((n + 1) c) / (n + 1) exactly (Beta's mean)."""
    source, n, coverage, draws = np.random.default_rng(0), 24, 0.85, 20_000
    scores = source.random((draws, n + 1))
    covered = np.array([row[n] >= coverage_threshold(row[:n], coverage) for row in scores]).mean()
    exact, without = math.ceil(25 * coverage) / 25, math.ceil(24 * coverage) / 25
    assert without < coverage <= exact
    assert covered == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / draws))
    assert covered - without > 8 * math.sqrt(exact * (1 - exact) / draws)


def test_risk_is_kept_in_as_many_draws_as_it_says():
    """P(wrong | p) = 1 - p for p uniform above 1/2: of answers above t, (1 - t) / 2 are wrong."""
    source, risk, broken, used, draws = np.random.default_rng(1), 0.15, 0, 0, 500
    for _ in range(draws):
        p = source.uniform(0.5, 1, 1_000)
        cut = risk_threshold(p, source.random(1_000) < p, risk)
        used += cut is not None
        broken += cut is not None and (1 - max(cut, 0.5)) / 2 > risk
    assert used > 0.8 * draws
    assert broken <= binom.ppf(1e-3, draws, DOUBT)


def test_a_threshold_of_risk_by_hand():
    """Of 100 rows first 38 are tested, then 40, 45, ...: as many may be wrong as scipy's binomial has it."""
    p = np.linspace(0.5, 0.999, 100)
    assert needed_for_risk(0.1) == 38 and binom.cdf(1, 38, 0.1) <= DOUBT < binom.cdf(1, 37, 0.1)
    assert risk_threshold(p, np.ones(100, bool), 0.1) == 0.0
    # The 30 least probable are wrong: of 75 rows 5 are, too many; of 70 none, and the threshold is that of the next row.
    assert binom.cdf(5, 75, 0.1) > DOUBT
    assert risk_threshold(p, np.arange(100) >= 30, 0.1) == pytest.approx(p[29])
    # Two wrong among the first 38 end it, however good the others are.
    assert binom.cdf(2, 38, 0.1) > DOUBT
    assert risk_threshold(p, ~np.isin(np.arange(100), (98, 99)), 0.1) is None
    assert risk_threshold(p[:37], np.ones(37, bool), 0.1) is None


def bound(**chosen: object) -> object:
    return CLASSIFICATION(NAMES, chosen=chosen)


def test_neither_temperature_nor_threshold_changes_the_best_label():
    logits, _ = overconfident(300, 2)
    best = [NAMES[i] for i in logits.argmax(1)]
    for chosen in ({}, {"temperature": HOTTEST}, {"temperature": 0.3, "coverage": 0.9, "threshold": 0.4}):
        answers = bound(**chosen).predictions("t", logits, [""] * 300)
        assert [answer.label for answer in answers] == best
        assert [answer.logits for answer in answers] == [tuple(map(float, row)) for row in logits]
    tiny = np.array([[0.0, 1e-30, 0.0]], np.float32)  # equal probabilities, as far as float64 goes
    assert bound(temperature=2.0).predictions("t", tiny, [""])[0].label == "b"


def test_a_task_without_temperature_answers_as_ever():
    logits, _ = overconfident(50, 3)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected = raised / raised.sum(axis=1, keepdims=True)  # in float32
    for row, answer in zip(expected, bound().predictions("t", logits, [""] * 50), strict=True):
        assert answer.scores == {name: round(float(p), 6) for name, p in zip(NAMES, row, strict=True)}
        assert answer.unsure is None and "unsure" not in answer.as_json()


def test_probabilities_are_those_at_the_temperature():
    logits, _ = overconfident(5, 4)
    expected = softmax(logits.astype(np.float64) / 2.5, 1)
    for row, answer in zip(expected, bound(temperature=2.5).predictions("t", logits, [""] * 5), strict=True):
        assert [*answer.scores.values()] == pytest.approx(row, abs=1e-6)


@pytest.mark.parametrize(
    ("chosen", "unsure"),
    [
        # The set of labels with p >= 0.3: {a}, {a, b}, {a}, none of them.
        ({"coverage": 0.9, "threshold": 0.3}, [False, True, False, False]),
        ({"coverage": 0.9, "threshold": 0.6}, [False, True, True, True]),  # the last three are empty
        ({"risk": 0.1, "threshold": 0.5}, [False, True, False, True]),
        ({"risk": 0.1, "threshold": 1.0}, [True] * 4),
    ],
)
def test_an_answer_is_unsure_by_its_set_or_its_probability(chosen, unsure):
    p = np.array([[0.8, 0.15, 0.05], [0.45, 0.35, 0.2], [0.55, 0.25, 0.2], [0.5, 0.27, 0.23]])
    answers = bound(temperature=1.0, **chosen).predictions("t", np.log(p), [""] * 4)
    # log(p) is softmax's inverse up to float64's rounding; 0.5 is at the threshold, which has to be passed.
    assert [answer.unsure for answer in answers[:3]] == unsure[:3]
    assert answers[0].as_json()["unsure"] is unsure[0] and answers[0].label == "a"
    if chosen["threshold"] != 0.5:
        assert answers[3].unsure is unsure[3]


def test_calibrating_gives_what_the_card_says():
    logits, targets = overconfident(400, 5)
    kind = CLASSIFICATION(NAMES).with_guarantee({"coverage": 0.9}, 400).calibrated(targets, logits)
    assert set(kind.chosen) == {"temperature", "ece", "coverage", "threshold"} and kind.guarantee == {"coverage": 0.9}
    assert kind.chosen["ece"]["after"] < kind.chosen["ece"]["before"] / 2
    found = kind.calibration(targets, logits)["calibration"]
    assert found["ece"] == kind.chosen["ece"] and sum(each["rows"] for each in found["bins"]["after"]) == 400
    # Of the rows themselves exactly the quantile: ceil(401 x 0.9) of 400.
    assert found["promise"]["covered"] == math.ceil(401 * 0.9) / 400
    answers = kind.predictions("t", logits, [""] * 400)
    sure = np.array([not answer.unsure for answer in answers])
    assert found["promise"]["unsure"] == pytest.approx(1 - sure.mean())
    assert found["promise"]["accuracy_of_sure"] == pytest.approx((logits.argmax(1) == targets)[sure].mean())
    # Another guarantee replaces the first; the same one is chosen anew by other rows.
    other = kind.with_guarantee({"risk": 0.2}, 400)
    assert "threshold" not in other.chosen and other.guarantee == {"risk": 0.2}
    again = kind.calibrated(*reversed(overconfident(400, 6)))
    assert again.guarantee == kind.guarantee and again.chosen["threshold"] != kind.chosen["threshold"]


def test_a_risk_that_nothing_keeps_makes_every_answer_unsure_and_is_said():
    logits, _ = overconfident(200, 7)
    kind = CLASSIFICATION(NAMES).with_guarantee({"risk": 0.1}, 200)
    with pytest.warns(UserWarning, match=r"no threshold keeps a risk of 0\.1 on the 200 evaluation rows"):
        kind = kind.calibrated(logits.argmin(1), logits)
    assert all(answer.unsure for answer in kind.predictions("t", logits, [""] * 200))
    assert kind.chosen["temperature_bound"] == HOTTEST
    assert kind.calibration(logits.argmin(1), logits)["calibration"]["promise"]["accuracy_of_sure"] is None


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["coverage", "risk"])
def test_a_promise_is_a_share(name, value):
    with pytest.raises(UsageError, match=f"--{name} is a share between 0 and 1"):
        guarantee_of(**{"coverage": None, "risk": None, name: value})


def test_promises_that_cannot_be_made_are_refused_in_words():
    with pytest.raises(UsageError, match="--coverage and --risk exclude each other"):
        guarantee_of(0.9, 0.1)
    with pytest.raises(UsageError, match=r"--coverage 0\.99 needs at least 99 evaluation rows; there are 40"):
        CLASSIFICATION(NAMES).with_guarantee({"coverage": 0.99}, 40)
    with pytest.raises(UsageError, match=r"--risk 0\.05 needs at least 77 evaluation rows; there are 40"):
        CLASSIFICATION(NAMES).with_guarantee({"risk": 0.05}, 40)
    for name in ("regression", "text"):
        with pytest.raises(UsageError, match="--risk is for a classification"):
            kind_named(name)().with_guarantee({"risk": 0.05}, 1000)
    assert kind_named("regression")().with_guarantee({}, 1) == kind_named("regression")()


@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 0},
        {"temperature": math.nan},
        {"temperature": "1"},
        {"temperature": True},
        {"threshold": 0.5},
        {"threshold": 1.5, "coverage": 0.9},
        {"threshold": 0.5, "coverage": 0.9, "risk": 0.1},
        {"threshold": 0.5, "coverage": -1},
    ],
)
def test_a_card_with_what_cannot_be_used_is_damaged(chosen):
    with pytest.raises(ValueError, match="probabilities"):
        bound(**chosen)
    assert replace(CLASSIFICATION(NAMES), chosen={"later": 1}).guarantee == {}

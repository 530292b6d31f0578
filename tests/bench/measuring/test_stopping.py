from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from edgepeft.bench.measuring.sampler import Sample, Series, half_width, precise, steady
from edgepeft.bench.result.statistics import drift, outliers, summarised


def series(seconds, batches=None, warmup=()):
    samples = [Sample(s, s) for s in seconds]
    return Series([Sample(s, s) for s in warmup], samples, batches or [0] * len(samples))


def test_the_interval_of_a_median_is_scipys_of_a_quantile():
    samples = list(np.random.default_rng(4).normal(1.0, 0.1, 101))
    found = stats.quantile_test(samples, q=0, p=0.5).confidence_interval(0.95)
    assert half_width(samples) == pytest.approx((found.high - found.low) / 2 / np.median(samples), rel=0.15)


def test_the_interval_covers_the_median_as_often_as_it_says():
    source, hits = np.random.default_rng(1), 0
    for _ in range(400):
        samples = source.exponential(1.0, 41)
        middle = np.median(samples)
        hits += abs(middle - np.log(2)) <= 1.6 * half_width(list(samples)) * middle
    assert hits >= 0.93 * 400


def test_fewer_than_six_samples_are_never_precise():
    # Five samples: the extremes hold the median with 1 - 2 / 2^5 = 94 %.
    assert half_width([1.0] * 5) == float("inf")
    assert half_width([1.0] * 6) == 0.0


def test_the_least_certain_unit_decides():
    steady_one, noisy = [1.0] * 40, list(np.random.default_rng(0).normal(1.0, 0.2, 40))
    assert precise({"a": series(steady_one)}, {0: 1.0}, 0.01)
    assert not precise({"a": series(steady_one), "b": series(noisy)}, {0: 1.0}, 0.01)


def test_batches_of_unequal_length_are_weighed_before_they_are_compared():
    seconds, batches = [1.0, 5.0] * 20, [0, 1] * 20
    assert precise({"a": series(seconds, batches)}, {0: 10.0, 1: 50.0}, 0.01)
    assert not precise({"a": series(seconds, batches)}, {}, 0.01)


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [([2.0], False), ([2.0, 1.0], False), ([2.0, 1.0, 1.0], True), ([1.0, 1.0], True), ([1.0, 1.0, 1.5], False)],
)
def test_steps_are_steady_once_they_neither_fall_nor_rise(warmup, expected):
    assert steady({"a": series([], warmup=warmup)}) is expected


def test_outliers_are_those_of_iglewicz_and_hoaglin():
    values = np.array([2.1, 2.6, 2.4, 2.5, 2.3, 2.1, 2.3, 2.6, 8.2, 8.3])
    # By hand: median 2.45, deviations' median 0.15; 0.6745 * 5.75 / 0.15 = 25.9.
    score = 0.6745 * abs(values - 2.45) / 0.15
    assert outliers(list(values)) == [int(i) for i in np.flatnonzero(score > 3.5)] == [8, 9]


def test_samples_that_are_all_equal_have_no_outlier_but_the_odd_one_is():
    assert outliers([1.0] * 20) == []
    assert outliers([1.0] * 19 + [2.0]) == [19]


def test_drift_is_theil_and_sens_slope_over_the_run():
    samples = list(1.0 + 0.01 * np.arange(50) + np.random.default_rng(2).normal(0, 0.002, 50))
    samples[10] = 30.0  # one hiccup moves no slope of this kind
    slope = stats.theilslopes(samples, np.arange(50)).slope
    assert drift(samples) == pytest.approx(slope * 49 / np.median(samples), rel=1e-9)


def test_a_row_describes_its_samples_or_says_that_they_are_not_alike():
    samples = list(np.random.default_rng(3).normal(1.0, 0.05, 60))
    found = summarised(samples, alike=True).to_json()
    expected = stats.bootstrap((samples,), np.median, method="percentile", random_state=np.random.default_rng(0))
    assert found["median_s"] == pytest.approx(np.median(samples))
    assert found["interval_s"][0] == pytest.approx(expected.confidence_interval.low, abs=0.004)
    assert found["interval_s"][1] == pytest.approx(expected.confidence_interval.high, abs=0.004)
    assert summarised(samples, alike=False).to_json() == {
        "n": 60,
        "median_s": None,
        "interval_s": None,
        "outliers": None,
        "drift": None,
    }

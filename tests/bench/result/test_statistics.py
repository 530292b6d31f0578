from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from edgepeft.bench.result.statistics import (
    instances_per_minute,
    paired_ratio,
    percentile,
    ratio_of_medians,
    ratio_of_totals,
)


def test_throughput_counts_unequal_batches_by_their_own_time():
    # 32 rows in 1 s and 16 rows in 3 s: 48 rows in 4 s, not the mean of two rates.
    assert instances_per_minute([32, 16], [1.0, 3.0]) == pytest.approx(720.0)


def test_percentiles_are_those_of_scipys_inverted_distribution():
    samples = list(np.random.default_rng(3).gamma(2.0, size=137))
    for p in (50, 90, 99):
        expected = stats.scoreatpercentile(samples, p, interpolation_method="higher")
        inverted = float(np.percentile(samples, p, method="inverted_cdf"))
        assert percentile(samples, p) == pytest.approx(inverted)
        assert inverted <= expected


@pytest.mark.parametrize(("p", "least"), [(50, 2), (90, 10), (99, 100)])
def test_a_percentile_needs_enough_samples_to_have_one_above_it(p, least):
    assert percentile([1.0] * (least - 1), p) is None
    assert percentile([1.0] * least, p) == 1.0


def test_a_paired_ratio_is_the_peers_time_over_ones_own():
    own, peer = [1.0, 2.0, 4.0], [2.0, 3.0, 20.0]  # ratios 2, 1.5, 5
    found = paired_ratio(own, peer)
    assert found.value == 2.0
    assert (found.low, found.high, found.rounds) == (1.5, 5.0, 3)


def test_pairing_removes_what_both_suffered_in_the_same_round():
    load = np.random.default_rng(1).uniform(1.0, 3.0, 40)
    found = paired_ratio(list(load), list(load * 1.1))
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)


def test_the_interval_of_a_median_agrees_with_scipys_bootstrap():
    ratios = np.random.default_rng(7).normal(1.0, 0.05, 60)
    found = paired_ratio([1.0] * 60, list(ratios))
    expected = stats.bootstrap(
        (ratios,), np.median, n_resamples=9999, method="percentile", random_state=np.random.default_rng(0)
    ).confidence_interval
    assert found.low == pytest.approx(expected.low, abs=0.004)
    assert found.high == pytest.approx(expected.high, abs=0.004)


def test_the_same_samples_always_give_the_same_interval():
    samples = list(np.random.default_rng(2).normal(1.0, 0.1, 30))
    assert ratio_of_medians(samples, samples[::-1]) == ratio_of_medians(samples, samples[::-1])


def test_a_ratio_of_totals_weighs_long_batches_more():
    found = ratio_of_totals([1.0, 9.0], [2.0, 9.0])
    assert found.value == pytest.approx(11.0 / 10.0)


def test_unpaired_samples_are_refused():
    with pytest.raises(ValueError, match="2 and 1"):
        paired_ratio([1.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="0 and 0"):
        ratio_of_totals([], [])


def test_a_new_run_twice_as_slow_has_half_the_throughput():
    assert ratio_of_medians([1.0] * 9, [2.0] * 9).value == 0.5


def test_a_host_that_was_half_as_fast_explains_twice_the_time():
    found = ratio_of_medians([1.0] * 9, [2.0] * 9, base_speed=[100.0] * 9, new_speed=[50.0] * 9)
    assert found.value == pytest.approx(1.0)


def test_a_noisy_host_rate_widens_the_interval():
    base = [1.0] * 30
    rates = list(np.random.default_rng(0).normal(100.0, 10.0, 30))
    found = ratio_of_medians(base, base, base_speed=rates, new_speed=rates)
    assert found.low < 1.0 < found.high

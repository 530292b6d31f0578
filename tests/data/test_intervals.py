"""Intervals against SciPy's own, and against the score whose coverage is known."""

import math

import numpy as np
import pytest
from scipy import stats

from edgepeft.data.by_class import MIN_ROWS, bootstrap, bootstrap_of_sums, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (3, 7), (146, 180), (0, 400), (400, 400), (9_999, 10_000)])
def test_wilsons_interval_is_scipys(right, n):
    theirs = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right, n) == pytest.approx((theirs.low, theirs.high, "wilson"), abs=1e-12)


def test_the_bootstrap_is_scipys_but_for_the_draws():
    values = np.random.default_rng(1).exponential(size=200)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=9_999, rng=2).confidence_interval
    spread = values.std() / math.sqrt(200)
    found = bootstrap(lambda places: float(values[places].mean()), 200)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.2 * spread)
    assert found.interval == "bootstrap"


def test_sums_have_the_interval_of_the_rows_that_they_are_of():
    counts = np.random.default_rng(3).integers(0, 5, (60, 2, 3))
    of_sums = bootstrap_of_sums(counts, lambda sums, _: float(sums[0].sum() / sums[1].sum()))
    rows = bootstrap(lambda places: float(counts[places, 0].sum() / counts[places, 1].sum()), 60)
    assert of_sums == pytest.approx(rows)


def test_it_is_the_same_every_time_and_none_of_too_few_rows():
    values = np.arange(30.0)
    assert bootstrap(lambda places: float(values[places].std()), 30) == bootstrap(lambda p: float(values[p].std()), 30)
    assert bootstrap(lambda places: 1.0, MIN_ROWS - 1) == (None, None, None)

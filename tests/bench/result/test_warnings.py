from __future__ import annotations

import pytest

from edgepeft.bench.measuring.measure import HostLoad, Measured, Snapshot, load_between, snapshot
from edgepeft.bench.measuring.sampler import Sample, Series
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.bench.result.rows import HINTS, warnings_of
from edgepeft.common.errors import DoesNotFit
from edgepeft.device.placement import InForce


def measured(seconds, batches=((8, 8),)):
    job = Job("infer_onnxruntime", 2, batches)
    series = Series(samples=[Sample(s, s) for s in seconds], batches=[0] * len(seconds))
    return Measured(Unit("infer", "onnxruntime", UnitRole.BACKBONE, job=job), series)


def test_steady_samples_in_full_number_need_no_warning():
    assert warnings_of(measured([1.0, 1.01] * 50), 100) == []


def test_fewer_rounds_than_asked_are_said():
    assert any("60 of 100 rounds" in warning for warning in warnings_of(measured([1.0] * 60), 100))


def test_percentiles_that_the_samples_do_not_support_are_named():
    assert any("30 samples do not support p99" in warning for warning in warnings_of(measured([1.0] * 30), 30))


def test_a_host_that_slowed_down_halfway_is_said():
    found = warnings_of(measured([1.0 + 0.003 * i for i in range(100)]), 100)
    # From 1.000 to 1.297 over a median of 1.1485.
    assert any("drift" in warning and "+26%" in warning for warning in found)


def test_scattered_samples_are_said():
    assert any("noisy" in warning for warning in warnings_of(measured([1.0, 2.0] * 50), 100))


def test_batches_of_unequal_length_are_neither_noise_nor_drift():
    found = warnings_of(measured([1.0] * 50 + [5.0] * 50, batches=((8,), (40,))), 100)
    assert found == []


def kinds(one, rounds=100):
    return {warning.split(":", 1)[0] for warning in warnings_of(one, rounds)}


def loaded(**load):
    one = measured([1.0, 1.01] * 50)
    one.load = HostLoad(**{"other_cores": 0.0, "stolen_cores": 0.0, "swapped_bytes": 0, "heat_events": 0, **load})
    return one


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        ({"other_cores": 0.9}, "other load"),
        ({"stolen_cores": 0.1}, "other load"),
        ({"swapped_bytes": 4096}, "swap"),
        ({"heat_events": 3}, "throttled"),
    ],
)
def test_what_the_host_did_meanwhile_is_said(load, kind):
    assert kinds(loaded(**load)) == {kind}


def test_a_host_that_did_nothing_else_needs_no_warning():
    assert kinds(loaded(other_cores=0.1, stolen_cores=0.01)) == set()


def test_a_gemm_rate_that_moves_is_an_unsteady_clock():
    one = measured([1.0, 1.01] * 50)
    one.gemm = Series(samples=[Sample(s, s) for s in [0.1, 0.12] * 50])
    assert kinds(one) == {"unsteady clock"}


@pytest.mark.parametrize(("cores", "quota", "warned"), [(1, None, True), (2, None, False), (2, 1.5, True)])
def test_threads_beyond_the_cores_in_force_are_said(cores, quota, warned):
    one = measured([1.0, 1.01] * 50)
    one.in_force = InForce("test", cores, None, "full", cpu_quota=quota)
    assert ("spinning oversubscribed" in kinds(one)) is warned


def test_many_outliers_are_said_and_few_are_not():
    steady = [1.0 + 0.001 * (i % 7) for i in range(100)]
    assert kinds(measured([*steady[:-2], 9.0, 9.0])) == set()
    assert "outliers" in kinds(measured([*steady[:-15], *[9.0] * 15]))


def test_a_run_that_ended_because_it_knew_enough_was_not_cut_short():
    one = measured([1.0] * 60)
    one.series.enough = True
    assert "cut short" not in kinds(one)


def test_an_interrupted_run_says_so():
    one = measured([1.0, 1.01] * 10)
    one.series.interrupted = True
    assert "interrupted" in kinds(one)


def test_every_kind_has_a_hint_or_says_itself_what_to_do():
    assert len(HINTS) == 15
    assert {kind for kind, hint in HINTS.items() if not hint} == {"not available", "does not fit"}


def test_warnings_are_of_the_closed_set():
    one = measured([1.0, 3.0] * 3)
    one.series.failure = DoesNotFit("needs 3 GB")
    one.load = HostLoad(2.0, 1.0, 1, 1)
    assert kinds(one) <= HINTS.keys()
    assert len(kinds(one)) >= 5


def test_load_is_what_the_host_did_without_our_own_seconds():
    before, after = Snapshot(0.0, 100.0, 5.0, 10, 1), Snapshot(10.0, 125.0, 6.0, 30, 1)
    # 25 CPU seconds in 10 s, 20 of them ours.
    assert load_between(before, after, 20.0) == HostLoad(0.5, 0.1, 20, 0)


def test_a_clock_that_was_set_back_gives_no_load():
    before = Snapshot(10.0, 100.0, 0.0, 0, 0)
    assert load_between(before, Snapshot(9.0, 101.0, 0.0, 0, 0), 0.0) is None


def test_this_host_can_be_asked(tmp_path):
    found = snapshot(clock=lambda: 1.0, sys=tmp_path)
    assert found.busy_s > 0
    assert found.heat_events == 0

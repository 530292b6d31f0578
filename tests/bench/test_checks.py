from __future__ import annotations

from edgepeft.bench.checks import warnings_of
from edgepeft.bench.job import Job
from edgepeft.bench.measure import Measured
from edgepeft.bench.plan import Role, Unit
from edgepeft.bench.sampler import Sample, Series


def measured(seconds, batches=((8, 8),)):
    job = Job("infer_onnxruntime", 2, batches)
    series = Series(samples=[Sample(s, s) for s in seconds], batches=[0] * len(seconds))
    return Measured(Unit("infer", "onnxruntime", Role.BACKBONE, job=job), series)


def test_steady_samples_in_full_number_need_no_warning():
    assert warnings_of(measured([1.0, 1.01] * 50), 100) == []


def test_fewer_rounds_than_asked_are_said():
    assert any("60 of 100 rounds" in warning for warning in warnings_of(measured([1.0] * 60), 100))


def test_percentiles_that_the_samples_do_not_support_are_named():
    assert "30 samples do not support p99" in warnings_of(measured([1.0] * 30), 30)


def test_a_host_that_slowed_down_halfway_is_said():
    found = warnings_of(measured([1.0] * 50 + [1.3] * 50), 100)
    assert any("drift" in warning and "+30%" in warning for warning in found)


def test_scattered_samples_are_said():
    assert any("noisy" in warning for warning in warnings_of(measured([1.0, 2.0] * 50), 100))


def test_batches_of_unequal_length_are_neither_noise_nor_drift():
    found = warnings_of(measured([1.0] * 50 + [5.0] * 50, batches=((8,), (40,))), 100)
    assert found == []

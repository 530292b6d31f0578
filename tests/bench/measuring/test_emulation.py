"""Calibration on a host made of arithmetic: a pass takes work / quota, plus what the host does to it."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from edgepeft.bench.measuring.emulation import calibrate, rate_error
from edgepeft.bench.measuring.sampler import Sample
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.device.profiles import load_profile

REFERENCE = 1.909  # seconds: Tencent/ncnn, benchmark/README.md, ViT-B/32-384 on a Raspberry Pi 4, 4 threads
ONE_THREAD = 6.606  # the same on one
COPY = 2.31  # GB/s: ThomasKaiser/sbc-bench


class Host:
    """A pass takes ``work(quota)`` seconds; what was asked of it is written down."""

    def __init__(self, work, cap=None):
        self.work, self.cap, self.quotas, self.jobs = work, cap, [], []

    @contextmanager
    def __call__(self, label, job, quota):
        self.jobs.append((job.workload, job.threads, quota))
        yield Passes(self, job, quota)


class Passes:
    def __init__(self, host, job, quota):
        self.host, self.job, self.quota = host, job, quota

    def change_quota(self, cores):
        self.quota = cores if self.host.cap is None else min(cores, self.host.cap)
        self.host.quotas.append(self.quota)
        return self.quota

    def step(self, batch):
        return Sample(self.host.work(self.quota), 0.1)


def found(work, cores=2, **more):
    host = Host(work, **more)
    return calibrate(load_profile("rpi4"), host, cores=cores), host


def test_the_quota_is_the_share_of_the_cores_that_makes_the_host_as_slow_as_the_device():
    result, _ = found(lambda quota: 0.3 * 2 / quota)
    assert result.quota_cores == pytest.approx(2 * 0.3 / REFERENCE)
    assert (result.host_s, result.device_s) == (0.3, REFERENCE)
    assert result.error == pytest.approx(0, abs=1e-9)


def test_a_host_that_does_not_follow_its_quota_is_iterated_upon():
    # A fixed loss in every pass, and speed that grows with the square root of the quota.
    result, host = found(lambda quota: 0.2 + 0.3 * (2 / quota) ** 0.5)
    assert abs(result.achieved_s / REFERENCE - 1) <= 0.05
    assert 0.2 + 0.3 * (2 / result.quota_cores) ** 0.5 == pytest.approx(REFERENCE, rel=0.05)
    assert len(set(host.quotas)) > 2


def test_the_second_look_counts_not_the_lucky_first():
    times = iter([0.3, 0.3, REFERENCE, REFERENCE * 1.2, REFERENCE * 1.2, *[REFERENCE] * 20])
    result, _ = found(lambda quota: next(times))
    assert result.achieved_s == REFERENCE
    assert len(result.trials) > 3


def test_a_host_slower_than_the_device_is_refused_with_both_figures():
    with pytest.raises(EdgepeftError, match=r"in 2\.5 s \(10\.4 GFLOP/s\), the device in 1\.91 s \(13\.7 GFLOP/s\)"):
        found(lambda quota: 2.5)


@pytest.mark.parametrize("host_s", [REFERENCE * 1.04, REFERENCE * 0.96])
def test_a_host_as_fast_as_the_device_needs_no_quota(host_s):
    result, host = found(lambda quota: host_s)
    assert (result.quota_cores, host.quotas) == (2.0, [2.0])
    assert result.percentiles


def test_a_quota_below_a_millisecond_is_refused_with_both_figures():
    with pytest.raises(EdgepeftError, match=r"1\.91 s a pass against 0\.009 s here.*1 ms in each 100 ms"):
        found(lambda quota: 0.009 * 2 / quota)


def test_a_host_that_never_settles_is_an_error_that_says_so():
    times = iter([0.3, 0.3, *[REFERENCE, REFERENCE * 1.5] * 50])
    with pytest.raises(EdgepeftError, match=r"did not settle.*-33\.3%"):
        found(lambda quota: next(times))


@pytest.mark.parametrize(("share", "percentiles"), [(0.19, False), (0.21, True)])
def test_below_a_fifth_of_the_cores_there_are_no_percentiles(share, percentiles):
    result, _ = found(lambda quota: REFERENCE * share * 2 / quota)
    assert result.share == pytest.approx(share)
    assert result.percentiles is percentiles


def test_what_the_quota_leaves_wrong_is_measured_under_it():
    result, host = found(lambda quota: 0.3 * 2 / quota)
    memory, one_thread = result.residuals
    assert (memory.device, memory.unit) == (COPY, "GB/s")
    assert memory.here == pytest.approx(4 * (64 << 20) / REFERENCE / 1e9)  # 256 MiB in what a pass takes
    assert memory.ratio == pytest.approx(memory.here / COPY)
    assert one_thread.ratio == pytest.approx(ONE_THREAD / REFERENCE)  # a quota gives one thread what it gives all
    assert [(workload, threads) for workload, threads, _ in host.jobs] == [
        ("reference", 2),
        ("copy", 1),
        ("reference", 1),
    ]
    assert host.jobs[1][2] == host.jobs[2][2] == result.quota_cores


def test_a_quota_around_this_process_is_the_one_reported():
    result, _ = found(lambda quota: 0.3 * 2 / min(quota, 0.31), cap=0.31)
    assert result.quota_cores == pytest.approx(0.31)


def test_a_profile_without_a_whole_encoder_cannot_be_calibrated():
    with pytest.raises(UsageError, match="iphone11 names no whole encoder"):
        calibrate(load_profile("iphone11"), Host(lambda quota: 1.0), cores=2)


def test_the_error_in_the_rounds_is_that_of_the_rate():
    assert rate_error([2.0, 2.0], 1.9) == pytest.approx(-0.05)
    assert rate_error([], 1.9) is None


def test_the_reference_of_the_pi_needs_the_operations_of_the_published_rate():
    reference = load_profile("rpi4").reference
    t, d, f = 145, 768, 3072
    assert reference.flops == 12 * (2 * t * (4 * d * d + 2 * d * f) + 4 * t * t * d) + 2 * 144 * 3072 * 768
    assert reference.flops / REFERENCE / 1e9 == pytest.approx(13.7, abs=0.05)  # the fitted row of device figures


def test_the_reference_that_runs_has_those_operations():
    from edgepeft.bench.workloads.probes import reference_encoder

    shapes = {"n_layers": 2, "hidden_size": 8, "intermediate_size": 24, "n_heads": 2, "n_tokens": 5, "patch_values": 6}
    model, shape = reference_encoder(**shapes)
    assert shape == (4, 6)
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    gemms = [weights[node.input[1]] for node in model.graph.node if node.op_type == "Gemm"]
    assert gemms == [(6, 8), *[(8, 8)] * 4, (8, 24), (24, 8), *[(8, 8)] * 4, (8, 24), (24, 8)]
    assert sum(node.op_type == "MatMul" for node in model.graph.node) == 4

from __future__ import annotations

import math

import pytest

from bench.published.fitting import check_predictions, error_range, fit, fit_rates, mean_error, points_of, summaries
from edgepeft.device.profiles import known_profiles, load_profile

SHIPPED = [load_profile(name) for name in known_profiles()]


def checked(device, left_out, graph, runtime="ncnn", precision="fp32", threads=4):
    found = [
        one
        for one in check_predictions([load_profile(device)], left_out)
        if (one.point.graph, one.point.runtime, one.point.precision) == (graph, runtime, precision)
        and one.point.threads in (threads, None)
    ]
    assert len(found) == 1
    return found[0]


def with_latency(profile, graph, value):
    """The profile with every latency of a graph replaced."""
    rows = tuple(row.model_copy(update={"value": value}) if row.graph == graph else row for row in profile.latencies)
    return profile.model_copy(update={"latencies": rows})


def test_a_line_through_many_latencies_is_found_again():
    rows = tuple((512, 100.0 * i, 0.0) for i in range(5, 25))
    sweep = load_profile("rpi4").sweeps[0]
    flat = sweep.model_copy(update={"rows": tuple((*row[:2], 1.0) for row in rows)})
    points = points_of(load_profile("rpi4").model_copy(update={"latencies": (), "sweeps": (flat,)}))
    exact = [type(point)(**{**vars(point), "seconds": point.flops / 12.5e9 + 0.043}) for point in points]
    row = fit(exact)
    assert (row.value, row.overhead_ms) == (pytest.approx(12.5), pytest.approx(43))
    assert row.error_percent == pytest.approx(0, abs=1e-6) and row.samples == 20


def test_two_latencies_give_the_geometric_mean_of_their_rates_and_no_error_of_their_own():
    points = list(points_of(load_profile("pi-zero-2w")))
    row = fit(points)
    assert row.value == pytest.approx(math.sqrt((8.178e9 / 0.783) * (3.628e9 / 0.353)) / 1e9, rel=1e-3)
    assert row.overhead_ms == 0 and row.error_percent is None


def test_the_error_of_a_fit_is_that_of_each_point_from_the_others():
    points = [p for p in points_of(load_profile("iphone11")) if p.graph.startswith("vgg")]
    errors = []
    for left in points:
        others = [math.log(p.flops / p.seconds) for p in points if p is not left]
        errors.append(abs(left.flops / math.exp(sum(others) / 3) / left.seconds - 1))
    assert fit(points).error_percent == pytest.approx(100 * sum(errors) / 4)


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda profile: profile.name)
def test_a_shipped_rate_that_says_it_was_fitted_to_the_latencies_above_was(profile):
    fitted = {(r.runtime, r.precision, r.threads, r.operators): r for r in fit_rates(points_of(profile))}
    stated = [row for row in profile.calibrations if row.source.startswith("fitted to the latencies above")]
    assert stated or not profile.calibrations
    for row in stated:
        own = fitted[row.runtime, row.precision, row.threads, row.operators]
        assert row.value == pytest.approx(own.value, rel=0.01) and row.samples == own.samples
        if own.error_percent is not None:
            assert row.error_percent == pytest.approx(own.error_percent, rel=0.05)


def test_sixty_of_hats_encoders_give_nearly_the_line_of_all_two_thousand():
    points = [p for p in points_of(load_profile("rpi4")) if p.graph.startswith("wmt")]
    row = fit(points)
    assert (row.value, row.overhead_ms) == (pytest.approx(8.65, rel=0.1), pytest.approx(79.2, rel=0.1))


@pytest.mark.parametrize(("left_out", "graph"), [("family", "densenet-121"), ("model", "resnet-50")])
def test_a_prediction_does_not_know_what_was_left_out(left_out, graph):
    profile = load_profile("iphone11")
    true, false = (
        next(c for c in check_predictions([p], left_out) if c.point.graph == graph)
        for p in (profile, with_latency(profile, graph, 1))
    )
    assert true.predicted.seconds == false.predicted.seconds
    assert true.point.seconds != false.point.seconds


def test_a_family_is_left_out_in_every_runtime():
    for value in (1, 10**6):
        profile = with_latency(with_latency(load_profile("rpi4"), "resnet-18", value), "resnet-50", value)
        resnets = [one for one in check_predictions([profile], "family") if one.point.family == "ResNet"]
        assert len(resnets) == 7 and all(one.predicted.seconds is None for one in resnets)


@pytest.mark.parametrize("device", ["rpi4", "pi-zero-2w"])
@pytest.mark.parametrize("graph", ["resnet-50", "resnet-18"])
def test_one_resnet_is_predicted_from_the_other_within_25_percent(device, graph):
    found = checked(device, "model", graph)
    assert found.predicted.calibration == "calibrated" and abs(found.error) < 0.25 and found.within


def test_encoders_of_one_width_are_predicted_from_the_other_within_25_percent_in_the_mean():
    for (_, family, _), group in summaries(check_predictions([load_profile("rpi4")], "family")):
        if family.startswith("WMT"):
            assert mean_error(group) < 0.10 and group[0].predicted.calibration == "calibrated"
            assert error_range(group)[0] > -0.5  # the disturbed samples of the data set are slow ones


@pytest.mark.parametrize(
    ("device", "graph", "runtime"),
    [("rpi4", "mobilenet-v1", "ncnn"), ("rpi4", "vgg-16", "ncnn"), ("iphone11", "vgg-16", "Core ML, CPU")],
)
def test_a_family_whose_operators_nothing_else_has_is_not_predictable(device, graph, runtime):
    found = checked(device, "family", graph, runtime)
    assert (found.error, found.within, found.predicted.calibration) == (None, None, "not predictable")


def test_without_its_runtime_a_latency_is_predicted_from_anothers_and_says_so():
    found = checked("rpi4", "model", "resnet-50", "TFLite 2.11")
    assert (
        found.predicted.calibration == "uncalibrated" and found.error == pytest.approx(-0.5, abs=0.02) and found.within
    )

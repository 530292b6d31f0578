from __future__ import annotations

import pytest

from bench.published import works_of
from edgepeft.common.operators import OperatorClass, Work
from edgepeft.device.profiles import Amount, Calibration, load_profile
from edgepeft.device.roofline import predict_seconds

ROBERTA_128 = 12 * (2 * 128 * (4 * 768**2 + 2 * 768 * 3072) + 4 * 128**2 * 768)  # 22.35 GFLOP


def product(flops, weights=0):
    return Work("w", "MatMul", OperatorClass.MATRIX, flops, weights, 0, weights)


def row(**more):
    about = {"runtime": "onnxruntime", "precision": "fp32", "operators": "matrix", "unit": "GFLOP/s"}
    return Calibration(**{**about, "value": 10, "kind": "measured", "source": "a test", **more})


def with_rows(*rows, **figures):
    figures = {name: Amount(value=value, unit=unit, kind="unsourced") for name, (value, unit) in figures.items()}
    return load_profile("rpi4").model_copy(update={"calibrations": rows, "figures": figures})


def without_onnxruntime():
    profile = load_profile("rpi4")
    rows = tuple(row for row in profile.calibrations if row.runtime != "onnxruntime")
    return profile.model_copy(update={"calibrations": rows})


def test_roberta_on_a_raspberry_pi_4_takes_what_onnx_runtime_took_for_another_encoder():
    """46 to 69 a minute follow from the published times (device-figures); a rate of one model is off by -40 to +29 %."""
    found = predict_seconds([product(ROBERTA_128)], load_profile("rpi4"))
    assert found.calibration == "calibrated" and not found.notes
    assert 46 < 60 / found.seconds < 69
    low, high = sorted(60 / end for end in found.interval)
    assert low < 46 and high > 69
    assert 60 / found.at_least == pytest.approx(155, abs=0.5)


def test_roberta_at_another_runtimes_rate_takes_what_the_reference_works_out():
    found = predict_seconds([product(ROBERTA_128)], without_onnxruntime())
    assert 60 / found.seconds == pytest.approx(37, abs=0.5)
    assert [60 / end for end in found.interval] == pytest.approx([75, 15], rel=0.02)
    assert 60 / found.at_least == pytest.approx(155, abs=0.5)


def test_without_a_row_of_the_runtime_a_prediction_says_uncalibrated_and_whose_rate_it_took():
    found = predict_seconds([product(ROBERTA_128)], without_onnxruntime())
    assert found.calibration == "uncalibrated" and found.row.runtime == "ncnn"
    assert "uncalibrated: no row of onnxruntime on rpi4" in found.notes[0]
    assert predict_seconds([product(10**9)], load_profile("rpi4"), runtime="PyTorch").calibration == "calibrated"


@pytest.mark.parametrize("name", ["jetson-nano", "pi-zero-2w", "iphone11"])
def test_where_no_encoder_was_measured_there_is_no_latency(name):
    found = predict_seconds([product(ROBERTA_128)], load_profile(name))
    assert (found.seconds, found.interval, found.calibration) == (None, None, "not predictable")
    assert "not predictable" in " ".join(found.notes)
    if name != "iphone11":
        assert found.at_least == pytest.approx(ROBERTA_128 / load_profile(name).figures["fp32_peak"].value / 1e9)


def test_an_fp16_rate_is_halved_for_fp32_and_the_interval_reaches_up_to_the_rate_itself():
    profile = with_rows(row(precision="fp16", value=20))
    found = predict_seconds([product(10**9)], profile)
    assert found.seconds == pytest.approx(0.1) and found.calibration == "uncalibrated"
    assert found.interval[0] < 0.05 < 0.1 < found.interval[1]


def test_a_product_waits_for_the_longer_of_arithmetic_and_weights():
    profile = with_rows(row(), stream_triad=(2, "GB/s"))
    assert predict_seconds([product(10**9, 10**6)], profile).seconds == pytest.approx(0.1)
    slow = predict_seconds([product(10**9, 10**9)], profile)
    assert slow.seconds == pytest.approx(0.5) and slow.classes[OperatorClass.MATRIX].bound == "memory"


def test_what_stands_between_products_is_in_a_whole_models_rate_and_beside_a_bare_products():
    works = [product(10**9), Work("n", "LayerNormalization", OperatorClass.NORM, 7, 10**8, 10**8)]
    figures = {"copy_one_thread": (2, "GB/s")}
    assert predict_seconds(works, with_rows(row(), **figures)).seconds == pytest.approx(0.1)
    bare = predict_seconds(works, with_rows(row(whole=False, operator_us=50), **figures))
    assert bare.seconds == pytest.approx(0.1 + 0.1 + 2 * 50e-6)
    assert bare.classes[OperatorClass.NORM].bound == "memory"


def test_the_overhead_is_added_once():
    found = predict_seconds([product(10**9)] * 3, with_rows(row(overhead_ms=80)))
    assert found.seconds == pytest.approx(0.3 + 0.08)


def test_a_rows_error_widens_the_interval_and_a_single_sample_more():
    close = predict_seconds([product(10**9)], with_rows(row(samples=100, error_percent=5)))
    assert close.interval == pytest.approx((0.1 / 1.1, 0.1 * 1.1))
    alone = predict_seconds([product(10**9)], with_rows(row()))
    assert alone.interval[0] < close.interval[0] and close.interval[1] < alone.interval[1]


def test_nothing_is_predicted_faster_than_the_hardwares_peak():
    found = predict_seconds([product(10**9)], with_rows(row(value=1000), fp32_peak=(50, "GFLOP/s")))
    assert found.seconds == found.at_least == found.interval[0] == pytest.approx(0.02)


def test_one_thread_has_a_rate_of_its_own():
    whole = predict_seconds(works_of("vit-b-32-384"), load_profile("rpi4"), runtime="ncnn")
    alone = predict_seconds(works_of("vit-b-32-384"), load_profile("rpi4"), runtime="ncnn", threads=1)
    assert (whole.seconds, alone.seconds) == (pytest.approx(1.909, rel=0.01), pytest.approx(6.606, rel=0.01))


def test_a_rate_of_fewer_threads_than_cores_is_named():
    found = predict_seconds([product(10**9)], load_profile("snapdragon-855"))
    assert any("4 threads, of 8 cores" in note for note in found.notes)

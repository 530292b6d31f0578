"""``bench --mode predicted``: arithmetic on the profile's rows, and nothing that runs."""

from __future__ import annotations

import io
import json

import pytest

from edgepeft.bench.compare import ResultFile
from edgepeft.bench.result.schema import BenchResult
from edgepeft.bench.run import run_benchmark
from edgepeft.common.errors import UsageError
from edgepeft.options.verbs import BenchOptions


def predicted(**options):
    def start(label, job):
        raise AssertionError(f"{label} was started")

    asked = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "batch_size": 4, "length": 16, "mode": "predicted"}
    return run_benchmark(BenchOptions(**{**asked, **options}), start=start).result.to_json()


@pytest.fixture(scope="module")
def document():
    return predicted(backbone="roberta-base", batch_size=1, length=128)


def test_roberta_on_a_pi_4_takes_what_its_operations_take_at_the_published_rate(document):
    """22.35 GFLOP at 17 to 26 GFLOP/s: 46 to 69 instances a minute (device-figures)."""
    (row,) = document["results"]
    assert 46 < row["instances_per_minute"] < 69
    low, high = row["predicted"]["instances_per_minute_interval"]
    assert low < 46 and high > 69


def test_it_is_marked_as_predicted_and_has_no_samples(document):
    (row,) = document["results"]
    assert document["mode"] == "predicted"
    assert row["predicted"]["calibration"] == "calibrated"
    assert (row["samples_s"], row["peak_rss_bytes"], row["cpu_s"]) == ([], None, None)
    assert any("no measurement" in note for note in document["profile"]["notes"])
    assert document["profile"]["emulation"] == "none"


def test_the_table_shows_the_interval_and_what_it_is(document):
    from rich.console import Console

    from edgepeft.bench.report.tables import bench_table

    console = Console(width=250, file=io.StringIO())
    console.print(bench_table(BenchResult.model_validate_json(json.dumps(document))))
    text = " ".join(console.file.getvalue().split())
    assert "predicted for rpi4" in text
    assert "calibrated, at least 388 ms at the fp32 peak" in text  # 22.35 GFLOP / 57.6 GFLOP/s


def test_a_device_of_which_no_encoder_was_measured_is_not_predictable():
    (row,) = predicted(profile="iphone11")["results"]
    assert row["predicted"]["calibration"] == "not predictable"
    assert (row["instances_per_minute"], row["energy"]) == (None, None)


def test_batches_of_real_lengths_are_counted_at_their_real_tokens():
    long, real = predicted(length=64, batch_size=32), predicted(length=None, lengths="sst2", batch_size=32)
    seconds = [document["results"][0]["predicted"]["latency_s"] for document in (long, real)]
    mean = real["results"][0]["sequence_length"]
    # Projections are proportional to real tokens; attention adds padding up to the longest of a batch.
    assert mean / 64 < seconds[1] / seconds[0] < 1.3 * mean / 64


def test_energy_is_the_devices_power_times_the_prediction(document):
    (row,) = document["results"]
    assert row["energy"]["joules_per_instance"] == pytest.approx(5.66 * 60 / row["instances_per_minute"])
    assert row["energy"]["kind"] == "estimated"


@pytest.mark.parametrize("asked", [{"engines": ("pytorch",)}, {"workloads": ("finetune",)}])
def test_what_cannot_be_predicted_is_a_usage_error(asked):
    with pytest.raises(UsageError, match="predicts inference with ONNX Runtime"):
        predicted(**asked)


def test_compare_reads_the_file_and_refuses_it(document, tmp_path):
    from edgepeft.bench.compare import compare_results

    path = tmp_path / "p.json"
    path.write_text(json.dumps(document, allow_nan=False))
    file = ResultFile.open(path)
    with pytest.raises(UsageError, match="predicted"):
        compare_results(file, file, 0.05)


def test_a_prompt_is_paid_for_once(tmp_path):
    """It stands in the task's graph, so the texts that are counted are as long as the user said."""
    from edgepeft.bench.planning.target import random_subject
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.deploy.cost import bundle_cost
    from edgepeft.device.profiles import load_profile
    from edgepeft.device.roofline import predict_seconds

    random_subject("electra-small-discriminator", tmp_path, methods=["prompt-r"], settings={"length": "40"})
    asked = {"engines": ("onnxruntime",), "workloads": ("infer",), "batch_size": 2, "length": 16, "mode": "predicted"}
    rows = run_benchmark(BenchOptions(profile="rpi4", bundle=tmp_path, **asked)).result.to_json()["results"]
    cost = bundle_cost(Bundle(tmp_path), "prompt-r", 2, 16)
    expected = predict_seconds(cost.works, load_profile("rpi4")).seconds
    row = next(row for row in rows if row["method"] == "prompt-r")
    assert row["instances_per_minute"] == pytest.approx(60 * 2 / expected)

from __future__ import annotations

import io
import json

import pytest

from edgepeft.bench.compare import ResultFile
from edgepeft.bench.measuring.sampler import Budget
from edgepeft.bench.planning.target import random_subject
from edgepeft.bench.report.tables import _footnotes
from edgepeft.bench.result.schema import BenchResult
from edgepeft.bench.run import run_benchmark
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.options.verbs import BenchOptions

# What the readers of the JSON rely on, written down a second time.
TOP = {"schema", "mode", "host", "profile", "results"}
ROW = {
    "scenario",
    "workload",
    "engine",
    "method",
    "task",
    "batch_size",
    "sequence_length",
    "threads",
    "samples_s",
    "instances_per_minute",
    "latency_s",
    "peak_rss_bytes",
    "cpu_s",
    "flops_per_instance",
    "gemm_fraction",
    "ratio_to",
    "warnings",
}


def bench(start, **options):
    settings = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "rounds": 10, "batch_size": 4, "length": 16}
    return run_benchmark(BenchOptions.of({**settings, **options}, "edgepeft bench"), start=start)


@pytest.fixture(scope="module")
def outcome(fake_start):
    def seconds(label):
        return 0.25 if label.endswith("gemm") else 0.5 if "onnx" in label else 2.0

    start = fake_start(seconds)
    return bench(start), start


@pytest.mark.parametrize("mode", ["limits", "predicted"])
def test_a_bundle_is_opened_once(fake_start, tmp_path, monkeypatch, mode):
    random_subject("all-MiniLM-L6-v2", tmp_path)
    opened, init = [], Bundle.__init__
    monkeypatch.setattr(Bundle, "__init__", lambda self, folder: (opened.append(folder), init(self, folder))[1])
    bench(fake_start(), backbone=None, bundle=tmp_path, mode=mode, counted=True, rounds=2)
    assert opened == [tmp_path]


def table(document):
    from rich.console import Console

    from edgepeft.bench.report.tables import bench_table

    console = Console(width=200, file=io.StringIO())
    console.print(bench_table(BenchResult.model_validate_json(json.dumps(document))))
    return console.file.getvalue()


def rows(document):
    return {(row["workload"], row["engine"]): row for row in document["results"]}


def test_the_document_has_every_field_of_the_contract(outcome):
    document = json.loads(json.dumps(outcome[0].result.to_json(), allow_nan=False))
    assert document.keys() >= TOP
    assert document["schema"] == "edgepeft.bench/1"
    assert document["mode"] == "limits"
    assert document["profile"].keys() >= {"limits", "emulation", "notes"}
    assert document["profile"]["limits"].keys() == {"requested", "in_force"}
    for row in document["results"]:
        assert row.keys() >= ROW
        assert row["latency_s"].keys() == {"p50", "p90", "p99"}


def test_throughput_follows_from_the_samples(outcome):
    row = rows(outcome[0].result.to_json())["infer", "onnxruntime"]
    assert row["samples_s"] == [0.5] * 10
    assert row["instances_per_minute"] == pytest.approx(4 / 0.5 * 60)
    assert row["latency_s"] == {"p50": 0.5, "p90": 0.5, "p99": None}
    assert row["cpu_s"] == pytest.approx(10.0)
    assert row["peak_rss_bytes"] == 123_000_000


def test_the_share_of_gemm_is_work_over_the_probes_rate(outcome):
    document = outcome[0].result.to_json()
    row = rows(document)["infer", "onnxruntime"]
    n, d, ff, layers = 16, 384, 1536, 6
    flops = layers * (2 * n * (4 * d * d + 2 * d * ff) + 4 * n * n * d)
    assert row["flops_per_instance"] == flops
    rate = document["host"]["gemm_gflops"] * 1e9
    assert rate == pytest.approx(8 * 2 * 1024 * 768 * 3072 / 0.25)
    assert row["gemm_fraction"] == pytest.approx(4 * flops / 0.5 / rate)


def test_engines_are_compared_in_their_rounds(outcome):
    ratio = rows(outcome[0].result.to_json())["infer", "onnxruntime"]["ratio_to"]["pytorch"]
    assert ratio["ratio"] == pytest.approx(4.0)
    assert ratio["interval"] == [pytest.approx(4.0)] * 2
    assert ratio["rounds"] == 10


@pytest.fixture(scope="module")
def trainable(tiny, tmp_path_factory):
    """A bundle of one task."""
    from deltas import TEXTS, random_delta, saved

    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.exporting.bundle import export_bundle

    folder = tmp_path_factory.mktemp("trainable")
    backbone = open_backbone(str(tiny("bert", mean=True)))
    path = saved(random_delta(backbone, "lora", "mood"), folder / "delta")
    export_bundle(backbone, [path], folder / "bundle", texts=TEXTS)
    return folder / "bundle"


@pytest.fixture(scope="module")
def tuned(fake_start, trainable):
    """Steps of 0.5 s with ONNX Runtime, 1.5 s with PyTorch, 3 s where it trains everything; PyTorch's GEMM at half."""

    def seconds(label):
        if "gemm" in label:
            return 0.5 if "pytorch" in label else 0.25
        return 0.5 if "onnxruntime" in label else 3.0 if "full" in label else 1.5

    asked = {"backbone": None, "workloads": ("finetune",), "engines": ("onnxruntime",)}
    return bench(fake_start(seconds), bundle=trainable, **asked).result.to_json()


def test_fine_tuning_with_onnx_runtime_is_compared_with_pytorchs_step_and_with_training_everything(tuned):
    row = rows(tuned)["finetune", "onnxruntime"]
    assert row["ratio_to"]["pytorch"]["ratio"] == pytest.approx(3.0)
    assert row["ratio_to"]["pytorch:full"]["ratio"] == pytest.approx(6.0)
    assert row["ratio_to"]["pytorch"]["peak_rss"] == pytest.approx(1.0)  # every fake takes 123 MB
    assert (row["threads"], row["batch_size"], row["sequence_length"]) == (tuned["results"][0]["threads"], 4, 16)


def test_pytorchs_gemm_rate_stands_beside_the_hosts(tuned, fake_start):
    assert tuned["host"]["pytorch_gemm_gflops"] == pytest.approx(tuned["host"]["gemm_gflops"] / 2)
    alone = bench(fake_start(), workloads=("infer",), engines=("onnxruntime",)).result.to_json()
    assert alone["host"]["pytorch_gemm_gflops"] is None and alone["host"]["gemm_gflops"] is not None


def test_the_table_has_the_same_step_and_its_memory(tuned):
    text = table(tuned)
    assert "runs at 3.000 [3.000, 3.000] x PyTorch's same step, peak memory 1.00 of its" in text
    assert "6.000 [6.000, 6.000]" in text


def test_fine_tuning_a_random_backbone_with_onnx_runtime_needs_a_method(fake_start):
    with pytest.raises(UsageError, match="--method"):
        bench(fake_start(), workloads=("finetune",), engines=("onnxruntime",))


def test_one_kinds_workers_are_closed_before_the_next_are_opened(outcome):
    for together in outcome[1].together:
        assert len({label.split()[0] for label in together}) == 1


def test_random_weights_are_labelled(outcome):
    assert outcome[0].result.to_json()["model"]["random_weights"] is True


def test_compare_reads_what_bench_writes(outcome, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(outcome[0].result.to_json()))
    file = ResultFile.open(path)
    assert len(file.document.results) == 3
    assert file.gemm_gflops("infer")


def test_the_table_shows_limits_threads_and_length(outcome):
    text = table(outcome[0].result.to_json())
    for part in ("random weights under rpi4", "limits in force: 2 of the device's 4 cores", "tokens 16", "480.0"):
        assert part in text


def test_a_unit_that_does_not_fit_leaves_the_others_measured(fake_start):
    outcome = bench(fake_start(too_large=["infer pytorch backbone"]), workloads=("infer",))
    found = rows(outcome.result.to_json())
    assert found["infer", "pytorch"]["samples_s"] == []
    assert any("does not fit" in warning for warning in found["infer", "pytorch"]["warnings"])
    assert len(found["infer", "onnxruntime"]["samples_s"]) == 10
    assert len(outcome.failures) == 1
    assert "1000000 bytes" in str(outcome.failures[0])


def test_real_lengths_run_over_their_batches_and_warm_up_on_the_largest(fake_start):
    start = fake_start()
    outcome = bench(start, length=None, lengths="rte", batch_size=32, workloads=("infer",), engines=("onnxruntime",))
    job = start.jobs["infer onnxruntime backbone"]
    padded = [len(batch) * max(batch) for batch in job.batches]
    asked = [batch for label, batch in start.log if label == "infer onnxruntime backbone"]
    assert len(job.batches) == 277 // 32
    assert asked[0] == padded.index(max(padded))
    assert asked[2:] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    row = outcome.result.to_json()["results"][0]
    assert row["lengths"]["source"] == "rte"
    assert row["sequence_length"] == pytest.approx(68.26)
    # Mean over the batches that were made, a remainder of 21 rows left out.
    assert 0.3 < row["lengths"]["real_token_share"] < 0.9


def test_a_peer_is_a_row_and_a_ratio_of_every_other(tmp_path, fake_start):
    peer = tmp_path / "optimum.onnx"
    peer.write_bytes(b"opened by the worker, which is a fake here")
    outcome = bench(
        fake_start(lambda label: 3.0 if "peer" in label else 1.0),
        peers=(peer,),
        workloads=("infer",),
        engines=("onnxruntime",),
    )
    bare, other = outcome.result.to_json()["results"]
    assert other["peer"] == "optimum"
    assert bare["ratio_to"]["peer:optimum"]["ratio"] == pytest.approx(3.0)
    assert other["ratio_to"]["backbone"]["ratio"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"length": 0}, "length must be at least 1"),
        ({"length": 513}, "at most 512"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"max_seconds": 0.0}, "--max-seconds"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"max_seconds": float("nan")}, "--max-seconds"),
        ({"lengths": "sst2"}, "exclude"),
        ({"tasks": ("sst2",)}, "--task"),
        ({"settings": {"a": "1"}}, "--method"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(options, named, fake_start):
    with pytest.raises(UsageError, match=named):
        bench(fake_start(), **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"profile": "rpi44"}, "rpi4"),
        ({"backbone": "roberta"}, "roberta-base"),
        ({"engines": ("onnx",)}, "onnxruntime"),
        ({"workloads": ("train",)}, "finetune"),
        ({"lengths": "sst", "length": None}, "sst2"),
        ({"scenario": "ofline"}, "offline"),
    ],
)
def test_an_unknown_name_offers_the_known_ones(options, named, fake_start):
    with pytest.raises(UnknownName, match=named):
        bench(fake_start(), **options)


def test_a_missing_peer_is_a_usage_error(tmp_path, fake_start):
    with pytest.raises(UsageError, match=r"nowhere\.onnx"):
        bench(fake_start(), peers=(tmp_path / "nowhere.onnx",))


def test_a_prompt_is_compared_with_the_backbone_on_lengthened_rows(fake_start):
    """Samples of 0.25 s for the lengthened backbone, 0.125 s on texts alone, 0.5 s for the task."""

    def seconds(label):
        return 0.25 if "more" in label else 0.5 if "task" in label else 0.125

    options = {"methods": ("prompt-r",), "settings": {"length": "7"}, "workloads": ("infer",)}
    document = bench(fake_start(seconds), engines=("onnxruntime",), **options).result.to_json()
    task, bare, longer = document["results"]
    assert task["ratio_to"]["backbone+7"]["ratio"] == pytest.approx(0.5)
    assert task["ratio_to"]["backbone"]["ratio"] == pytest.approx(0.25)
    assert (bare["prompt_length"], longer["prompt_length"]) == (None, 7)
    assert task["flops_per_instance"] == longer["flops_per_instance"] > bare["flops_per_instance"]
    assert "backbone+7" not in bare["ratio_to"]


def test_texts_leave_room_for_a_prompt(fake_start):
    options = {"methods": ("prompt-r",), "settings": {"length": "100"}, "workloads": ("infer",), "length": 413}
    with pytest.raises(UsageError, match="takes at most 412 tokens beside a prompt of 100"):
        bench(fake_start(lambda _: 1.0), **options)


class Steps:
    """What calibration asks of a worker, on a host that follows its quota."""

    def __init__(self, seconds):
        self.seconds, self.quota = seconds, 2.0

    def change_quota(self, cores):
        self.quota = cores
        return cores

    def step(self, batch):
        from edgepeft.bench.measuring.sampler import Sample

        return Sample(self.seconds * 2 / self.quota, 0.1)


def calibrated(start, host_s, monkeypatch, **options):
    from contextlib import contextmanager

    from edgepeft.bench.measuring import emulation

    monkeypatch.setattr(emulation, "thread_count", lambda cores=None: 2)

    @contextmanager
    def start_at(label, job, quota):
        steps = Steps(host_s)
        steps.quota = quota
        yield steps

    settings = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "rounds": 10, "batch_size": 4, "length": 16}
    asked = {"workloads": ("infer",), "engines": ("onnxruntime",), "mode": "calibrated", **options}
    return run_benchmark(BenchOptions(**{**settings, **asked}), start=start, start_at=start_at).result.to_json()


def test_a_calibrated_result_says_so_everywhere_and_has_no_percentiles_below_a_fifth(fake_start, monkeypatch):
    start = fake_start(lambda label: 2.0 if "reference" in label else 0.5)
    document = calibrated(start, 0.19, monkeypatch)
    assert document["mode"] == "calibrated"
    assert document["calibration"]["share"] == pytest.approx(0.19 / 1.909)
    first = document["calibration"]["trials"][0]
    assert (first["quota_cores"], first["seconds"]) == (2.0, [0.19])
    assert [one["work"].split()[0] for one in document["calibration"]["residuals"]] == ["memory-bound", "work"]
    assert document["profile"]["limits"]["requested"]["cpu_quota"] == pytest.approx(2 * 0.19 / 1.909)
    (row,) = document["results"]
    assert row["latency_s"] == {"p50": None, "p90": None, "p99": None}
    assert row["instances_per_minute"] == pytest.approx(4 / 0.5 * 60)
    shown = " ".join(table(document).split())
    assert "calibrated to rpi4" in shown
    notes = " ".join(document["profile"]["notes"])
    assert "throughput only, no percentiles" in notes
    assert "uncalibrated for ONNX Runtime: the device's reference was measured with ncnn" in notes
    assert "speed is the host's" not in shown


def test_above_a_fifth_a_calibrated_result_has_percentiles(fake_start, monkeypatch):
    document = calibrated(fake_start(0.5), 0.9, monkeypatch)
    assert document["results"][0]["latency_s"]["p50"] == 0.5
    assert "no percentiles" not in table(document)


def test_the_reference_runs_in_the_rounds_too_and_its_error_is_told(fake_start, monkeypatch):
    start = fake_start(lambda label: 2.0 if "reference" in label else 0.5)
    document = calibrated(start, 0.19, monkeypatch)
    assert document["calibration"]["in_rounds_s"] == {"infer": [2.0] * 10}
    assert document["calibration"]["in_rounds_error"]["infer"] == pytest.approx(1.909 / 2.0 - 1)


def test_the_quota_holds_after_the_warm_up_and_before_the_first_sample(fake_start, monkeypatch):
    start = fake_start(0.5)
    calibrated(start, 0.19, monkeypatch)
    steps = [label for label, _ in start.log].count("infer onnxruntime backbone")
    assert start.throttled["infer onnxruntime backbone"] == steps - 10


def test_energy_is_estimated_from_the_devices_power_where_times_are_the_devices(fake_start, monkeypatch):
    (row,) = calibrated(fake_start(0.5), 0.19, monkeypatch)["results"]
    assert row["energy"]["joules_per_instance"] == pytest.approx(5.66 * 0.5 / 4)  # W of mlcommons v1.0, s, rows
    assert row["energy"]["kind"] == "estimated"
    assert "5.66 W" in row["energy"]["source"]


def test_under_limits_alone_no_energy_is_told(outcome):
    assert {row["energy"] for row in outcome[0].result.to_json()["results"]} == {None}


def test_an_unknown_mode_is_a_usage_error_before_anything_starts(fake_start):
    start = fake_start()
    with pytest.raises(UsageError, match=r"no mode is called 'calibrate'\. Did you mean 'calibrated'"):
        bench(start, mode="calibrate")
    assert not start.jobs


class Loading:
    """Workers that take ten seconds to start and one to step, on a clock of ours."""

    def __init__(self, fake_start):
        self.now, self.start = 0.0, fake_start(self._step)

    def _step(self, _):
        self.now += 1.0
        return 1.0

    def __call__(self, label, job):
        self.now += 10.0
        return self.start(label, job)


def test_max_seconds_bounds_the_whole_run_and_what_had_no_time_is_said(fake_start, monkeypatch):
    """Both workloads together, with the starting of their workers: 458 s were taken where 40 were asked."""
    said, start = [], Loading(fake_start)
    monkeypatch.setattr("edgepeft.bench.run.Budget.of", lambda seconds: Budget(seconds, lambda: start.now))
    settings = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "batch_size": 4, "length": 16, "max_seconds": 120.0}
    result = run_benchmark(BenchOptions(**settings), start=start, say=said.append).result
    assert start.now <= 120.0
    rows = {row.workload: row for row in result.results if row.engine == "onnxruntime" and row.samples_s}
    assert rows
    late = [row for row in result.results if not row.samples_s and not row.warnings[0].startswith("not available")]
    assert all(row.warnings[0].startswith("left out: no time was left") for row in late)
    assert len(said) == 1 and "rounds: about" in said[0]


def test_a_table_has_five_notes_at_most_and_the_document_has_all(outcome):
    result = outcome[0].result
    notes = ("a", "b", "c", "d", "e", "f")
    loud = result.model_copy(update={"profile": result.profile.model_copy(update={"notes": notes})})
    below = _footnotes(loud)
    assert len(below) == 5
    assert str(below[-1]) == "and 4 more: --json FILE, and edgepeft report FILE"
    assert loud.to_json()["profile"]["notes"] == list(notes)

"""The schema of results: what it refuses, what it still reads, and that it writes what it read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.suites._result import SuiteResult
from edgepeft.bench.compare import ResultFile, compare_results
from edgepeft.bench.report.build import read_inputs, sections
from edgepeft.bench.result.parts import read_document, schema_of
from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, ScheduleRecord
from edgepeft.bench.run import run_benchmark
from edgepeft.common.errors import DataError
from edgepeft.options.verbs import BenchOptions

ROOT = Path(__file__).resolve().parents[3]
KEPT = sorted([*(ROOT / "docs" / "benchmarks").rglob("*.json"), *(ROOT / "bench" / "baselines").rglob("*.json")])
OF_BENCH = [path for path in KEPT if schema_of(path) == RESULT_SCHEMA]
OF_SUITES = [path for path in KEPT if schema_of(path) == "edgepeft.suite/1"]


def holds(whole, part):
    """Whether every key and value of ``part`` is in ``whole``."""
    if isinstance(part, dict):
        return whole.keys() >= part.keys() and all(holds(whole[name], value) for name, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return type(whole) is type(part) and whole == part


@pytest.mark.parametrize("path", OF_BENCH, ids=lambda path: path.name)
def test_every_result_of_the_repository_is_read_whole_compared_and_reported(path):
    file = ResultFile.open(path)
    assert holds(file.document.to_json(), json.loads(path.read_text()))
    comparison = compare_results(file, file, 0.05)
    assert not comparison.failed
    assert len(comparison.verdicts) == len([row for row in file.document.results if row.samples_s])
    assert bool(sections(read_inputs([path]))) == bool(file.document.results)


@pytest.mark.parametrize("path", OF_SUITES, ids=lambda path: path.name)
def test_every_suites_result_of_the_repository_is_read_whole(path):
    assert holds(read_document(path, SuiteResult).to_json(), json.loads(path.read_text()))


def test_the_repository_has_results_of_both_kinds():
    assert len(OF_BENCH) >= 13 and len(OF_SUITES) >= 4


def keys(document):
    """Names at every level, those of lists and free names left out."""
    return {
        name: keys(value) if name in {"host", "model", "profile", "lengths"} else None
        for name, value in document.items()
    }


def test_measured_and_predicted_results_have_the_same_keys(fake_start):
    asked = {"backbone": "all-MiniLM-L6-v2", "length": 8, "batch_size": 2, "workloads": ("infer",), "rounds": 2}
    asked |= {"engines": ("onnxruntime",)}
    measured = run_benchmark(BenchOptions(profile="rpi4", **asked), start=fake_start(0.1)).result.to_json()
    predicted = run_benchmark(BenchOptions(profile="rpi4", mode="predicted", **asked)).result.to_json()
    assert keys(predicted) == keys(measured)
    assert keys(predicted["results"][0]) == {**keys(measured["results"][0]), "predicted": None}
    assert predicted["measured_at"] and predicted["schedule"] == {}


def test_what_was_not_asked_for_is_not_written():
    written = BenchResult(results=()).to_json()
    assert not {"calibration", "operators", "against", "completed", "request"} & written.keys()
    assert {"host", "commit", "metrics"} <= written.keys()
    assert ScheduleRecord(rounds=3, scenario=None).to_json() == {"rounds": 3, "scenario": None}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"samples_s": [1.0]}', r"results\.0\.workload is missing"),
        ('{"workload": "infer"}', r"results\.0\.samples_s is missing"),
        ('{"workload": "infer", "samples_s": [-1.0]}', r"samples_s\.0 must be a number above 0, found -1\.0"),
        ('{"workload": "infer", "samples_s": [NaN]}', r"samples_s\.0 must be a finite number, found nan"),
        ('{"workload": "infer", "samples_s": [], "threads": true}', r"threads must be a whole number, found True"),
        (
            '{"workload": "infer", "samples_s": [], "sequence_length": "8"}',
            r"sequence_length must be a number, found '8'",
        ),
        ('{"workload": "infer", "samples_s": [], "warnings": "noisy"}', r"warnings must be a list, found 'noisy'"),
        ('{"workload": "infer", "samples_s": [], "latency_s": 3}', r"latency_s must be an object, found 3"),
        (f'{{"workload": "infer", "samples_s": [], "cpu_s": {10**400}}}', r"cpu_s must be a finite number"),
        (f'{{"workload": "infer", "samples_s": [], "cpu_s": {"9" * 5000}}}', r"not JSON|cpu_s must be a finite number"),
        (f'{{"workload": "infer", "samples_s": {"[" * 9000}', r"is not JSON \(line 1"),
        ('{"workload": "infer", "samples_s": [], "energy": {"kind": "guessed", "watts": 1.0}}', "energy"),
    ],
)
def test_a_hostile_row_is_refused_in_plain_words_with_what_to_do(tmp_path, row, words):
    path = tmp_path / "odd.json"
    path.write_text(f'{{"schema": "edgepeft.bench/1", "results": [{row}]}}')
    with pytest.raises(DataError, match=rf"odd\.json.*({words})") as refused:
        ResultFile.open(path)
    assert "pydantic" not in str(refused.value) and "Input should" not in str(refused.value)
    assert len(str(refused.value)) < 400 and str(path) in str(refused.value)


def test_a_file_that_an_editor_put_a_byte_order_mark_before_is_read(tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(
        f'{{"schema": "{RESULT_SCHEMA}", "results": [{{"workload": "infer", "samples_s": [1.0]}}]}}', "utf-8-sig"
    )
    assert ResultFile.open(path).document.results[0].samples_s == (1.0,)


def test_keys_of_a_later_version_are_passed_over(tmp_path):
    path = tmp_path / "newer.json"
    row = {"workload": "infer", "samples_s": [1.0], "colour": {"deep": [1]}}
    path.write_text(json.dumps({"schema": RESULT_SCHEMA, "results": [row], "weather": "fine"}))
    assert ResultFile.open(path).document.results[0].samples_s == (1.0,)

"""The closing table shows what the bundle and the measurement say, and nothing that was not measured."""

from __future__ import annotations

import copy
import json
from io import StringIO

from rich.console import Console

from edgepeft.bench.report.tables import quickstart_summary, quickstart_table
from edgepeft.bench.result.schema import BenchResult
from edgepeft.bundle.manifest import Manifest

TASK = {"name": "topic", "title": "Topics", "source": "Somebody", "licence": "CC0"}
HASH = "0" * 64
ENTRY = {
    "method": "spartan",
    "labels": ["a", "b"],
    "head": "linear",
    "head_reads": "mean",
    "max_length": 96,
    "sha256": HASH,
    "check_sha256": HASH,
    "n_bytes": 1_234_567,
    "trainable_parameters": 300_000,
    "metrics": {"metric": "accuracy", "test": 0.9525, "eval": 0.99, "n_test": 400},
    "verification": {"rows": 64, "max_abs_difference": 2.4e-6, "tolerance": 1e-4, "agreement": 1.0},
}
BACKBONE = {
    "family": "bert",
    "model_type": "bert",
    "source": "MiniLM",
    "sha256": {"graph": HASH, "weights": HASH},
    "sites": {},
}
MANIFEST = Manifest.model_validate({"backbone": BACKBONE, "tasks": {"topic": ENTRY}})


def measured(workload, engine, task, rate):
    return {
        "workload": workload,
        "engine": engine,
        "task": task,
        "peer": None,
        "samples_s": [],
        "instances_per_minute": rate,
        "threads": 2,
        "batch_size": 32,
        "lengths": {"described": "MRPC validation; 408 pairs", "mean": 53.7},
    }


BENCH = {
    "host": {"cpu": "A CPU"},
    "profile": {
        "name": "rpi4",
        "limits": {
            "requested": {"cores": 4, "memory_bytes": 8_000_000_000},
            "in_force": {"cores": 2, "memory_bytes": 8_000_000_000, "backend": "cgroup v1"},
        },
        "emulation": "partial",
        "notes": ["the host has 2 cores"],
    },
    "schedule": {"rounds": 10},
    "results": [
        measured("infer", "onnxruntime", "topic", 4321.4),
        measured("infer", "pytorch", "topic", 1234.0),
        measured("infer", "onnxruntime", None, 5000.0),
        measured("finetune", "pytorch", "topic", 321.0),
        measured("finetune", "onnxruntime", "topic", None),
        measured("finetune", "pytorch", None, 111.0),
    ],
}


def shown(bench=BENCH) -> str:
    console = Console(width=160, record=True, file=StringIO())
    result = BenchResult.model_validate_json(json.dumps(bench))
    console.print(quickstart_table(quickstart_summary([TASK], MANIFEST, result, {"train": 60.0})))
    return console.export_text()


def test_the_table_has_task_method_score_size_parity_and_rates():
    text = shown()
    row = next(line for line in text.splitlines() if "topic" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "topic",
        "spartan",
        "95.2% of 400",
        "1.23 MB",
        "2e-06",
        "4,321",
        "1,234",
        "321",
    ]


def test_full_fine_tuning_is_not_taken_for_the_bare_backbone():
    row = next(line for line in shown().splitlines() if "bare backbone" in line)
    assert "5,000" in row
    assert "111" not in row


def test_limits_in_force_are_those_that_were_read_back():
    assert "2 of the device's 4 cores, 8,000 MB (cgroup v1; emulation partial)" in shown()


def test_a_machine_without_limits_says_so():
    bench = copy.deepcopy(BENCH)
    bench["profile"]["limits"]["in_force"] = None
    assert "limits in force: none." in shown(bench)


def test_what_was_not_measured_is_a_dash():
    bench = copy.deepcopy(BENCH)
    bench["results"][1]["instances_per_minute"] = None
    row = next(line for line in shown(bench).splitlines() if "topic" in line)
    assert "│ - " in row.replace("│     ", "│ ") or " - │" in row
    assert "nan" not in row.lower()


def test_source_and_licence_of_the_data_are_named():
    assert "topic: Topics. Somebody; CC0." in shown()

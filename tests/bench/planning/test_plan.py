from __future__ import annotations

from pathlib import Path

import pytest

from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import UnitRole, duration_text, expected_s, gemm_rate, plan_units
from edgepeft.bench.planning.target import BenchedTask

TASKS = (BenchedTask("sst2", "pfeiffer", {"bottleneck": 8}, 2), BenchedTask("rte", "lora"))


def planned(tasks=TASKS, batches=((8, 8),), **options):
    settings = {
        "engines": ("onnxruntime", "pytorch"),
        "workloads": ("infer", "finetune"),
    }
    shared = Job("", 2, batches, "bundle", vocab_size=100)
    return plan_units(tasks, shared, **{**settings, **options})


def test_inference_covers_all_tasks_and_the_bare_backbone_on_both_engines():
    found = {(u.engine, u.task.name if u.task else None) for u in planned(workloads=("infer",))}
    names = ("sst2", "rte", None)
    assert found == {(engine, name) for engine in ("onnxruntime", "pytorch") for name in names}


def test_fine_tuning_covers_all_tasks_and_everything_at_once():
    found = [(u.role, u.method) for u in planned(workloads=("finetune",), engines=("pytorch",))]
    assert found == [(UnitRole.TASK, "pfeiffer"), (UnitRole.TASK, "lora"), (UnitRole.FULL, "full")]


def test_a_task_that_trains_everything_is_not_measured_twice():
    tasks = (BenchedTask("all", "whatever it is called", trains_everything=True),)
    (unit,) = planned(tasks, workloads=("finetune",), engines=("pytorch",))
    assert unit.role is UnitRole.FULL
    assert unit.task.name == "all"


def test_a_prompt_is_measured_beside_the_bare_backbone_on_rows_as_long_as_its_own():
    tasks = (
        BenchedTask("t", "prompt-r", prompt_length=5),
        BenchedTask("u", "prompt-t", prompt_length=5),
        BenchedTask("v", "lora"),
    )
    units = planned(tasks, batches=((8, 3), (7,)))
    longer = [unit for unit in units if unit.role is UnitRole.LENGTHENED]
    assert [(unit.workload, unit.engine, unit.prompt_length) for unit in longer] == [
        ("infer", "onnxruntime", 5),
        ("infer", "pytorch", 5),
    ]
    assert all(unit.job.batches == ((13, 8), (12,)) and unit.job.task is None for unit in longer)
    assert all(unit.job.batches == ((8, 3), (7,)) for unit in units if unit.job and unit not in longer)


def test_what_is_missing_is_a_row_without_a_job():
    units = planned(missing={"pytorch": "not installed"})
    missing = [u for u in units if u.job is None]
    assert {(u.engine, u.unavailable) for u in missing} == {("pytorch", "not installed")}
    assert len(missing) == 6


def test_fine_tuning_with_onnx_runtime_is_measured_beside_pytorch_and_full_fine_tuning():
    units = planned(workloads=("finetune",), engines=("onnxruntime",))
    assert [(u.engine, u.method) for u in units] == [
        ("onnxruntime", "pfeiffer"),
        ("onnxruntime", "lora"),
        ("pytorch", "pfeiffer"),
        ("pytorch", "lora"),
        ("pytorch", "full"),
    ]
    assert all(u.job is not None for u in units)


def test_on_a_board_without_pytorch_fine_tuning_stands_alone():
    units = planned(workloads=("finetune",), engines=("onnxruntime",), missing={"pytorch": "not installed"})
    assert [(u.engine, u.method) for u in units] == [("onnxruntime", "pfeiffer"), ("onnxruntime", "lora")]


def test_jobs_name_workloads_and_each_is_a_function_of_its_file():
    from edgepeft.bench.measuring.worker import _PROBES
    from edgepeft.bench.workloads import models, probes

    assert all(callable(getattr(probes, name)) for name in _PROBES)
    asked = {unit.job.workload for unit in planned(peers=[Path("m.onnx")]) if unit.job}
    assert all(callable(getattr(models, name)) for name in asked - {*_PROBES})


def test_a_job_carries_the_tasks_settings_through_json():
    from edgepeft.bench.planning.job import Job

    unit = planned(workloads=("infer",), engines=("pytorch",))[0]
    assert Job.from_json(unit.job.to_json()) == unit.job
    assert unit.job.settings == {"bottleneck": 8}


def test_peers_of_the_same_file_name_are_told_apart(tmp_path):
    peers = [tmp_path / "one" / "model.onnx", tmp_path / "two" / "model.onnx", tmp_path / "other.onnx"]
    found = [u.peer for u in planned(workloads=("infer",), peers=peers) if u.role is UnitRole.PEER]
    assert found == ["one/model", "two/model", "other"]


def test_labels_are_unique():
    units = planned(peers=[Path("m.onnx")])
    assert len({u.label for u in units}) == len(units)


def test_a_step_takes_its_operations_at_half_the_rate_of_matrix_products_and_a_process_five_seconds():
    steps = [("infer", 1e9), ("infer", 3e9), ("finetune", 10e9)]
    # At 10 GFLOP/s: 0.2 and 0.6 s, 2 s; 5 to 30 of them, and 15 s for three processes.
    assert expected_s(steps, (5, 30), rate=10e9, most_s=600.0) == pytest.approx((15 + 4 + 10, 15 + 24 + 60))
    assert expected_s(steps, (5, 30), rate=10e9, most_s=20.0) == pytest.approx((15 + 4 + 10, 15 + 20 + 20))


def test_the_rate_is_that_of_the_fastest_of_three_products():
    now = iter([0.0, 2.0, 2.0, 3.0, 3.0, 7.0])
    assert gemm_rate(lambda: next(now)) == 2 * 1024**3


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((20.0, 61.0), "about 20 to 61 seconds"),
        ((40.0, 40.2), "about 40 seconds"),
        ((60.0, 150.0), "about 1 to 2 minutes"),
        ((130.0, 140.0), "about 2 minutes"),
    ],
)
def test_a_duration_is_told_as_people_do(ends, words):
    assert duration_text(ends) == words

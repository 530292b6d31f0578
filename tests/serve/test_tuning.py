"""Fine-tuning over HTTP: a job with progress and a result, whose task is served afterwards."""

from __future__ import annotations

import json
import random
import shutil

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
torch = pytest.importorskip("torch", reason="exporting needs pip install edgepeft[train]")

from edgepeft.runtime.runtime import Runtime


@pytest.fixture(scope="module")
def trainable(tiny, tmp_path_factory):
    from deltas import TEXTS

    from edgepeft.backbones.source import open_backbone
    from edgepeft.delta import new_delta
    from edgepeft.export.bundle import export_bundle
    from edgepeft.methods.base import method_named

    folder = tmp_path_factory.mktemp("trainable")
    backbone = open_backbone(str(tiny("bert", mean=True)))
    torch.manual_seed(0)
    method = method_named("pfeiffer").from_settings({"bottleneck": 4})
    new_delta(backbone, method, "mood", ("bad", "good"), max_length=40).save(folder / "mood")
    templates = [method_named("lora").from_settings({"rank": "2"})]
    export_bundle(backbone, [folder / "mood"], folder / "bundle", texts=TEXTS, trainable=True, templates=templates)
    return folder / "bundle"


def moods(n, seed=0):
    """``w10`` is good and ``w11`` bad, among words that say nothing."""
    source = random.Random(seed)
    rows = []
    for i in range(n):
        words = [f"w{source.randrange(20, 40)}" for _ in range(source.randrange(1, 6))]
        words.insert(source.randrange(len(words) + 1), "w10" if i % 2 else "w11")
        rows.append({"text": " ".join(words), "label": "good" if i % 2 else "bad"})
    return rows


def finished(own, job):
    own.wait_for(lambda: own.get(f"/v1/jobs/{job}")[2]["state"] != "running", 120)
    return own.get(f"/v1/jobs/{job}")[2]


def test_a_task_is_tuned_and_started_from_a_template_and_both_are_served(trainable, tmp_path):
    from served import serving

    bundle = shutil.copytree(trainable, tmp_path / "bundle")
    with serving(bundle, tmp_path, "--no-cache", "--allow-tuning") as own:
        status, _, job = own.post(
            "/v1/tasks/mood:tune", {"rows": moods(60), "epochs": 6, "lr": 0.01, "head_lr": 0.05, "batch_size": 8}
        )
        assert (status, job["state"]) == (202, "running")
        assert own.post("/v1/tasks/mood:tune", {"rows": moods(60)})[0] == 409
        assert own.predict("mood", {"text": "w5"})[0] == 200  # while it runs
        job = finished(own, job["job"])
        assert job["state"] == "done", job
        assert job["result"]["replaced"] is True
        assert job["result"]["metrics"]["metric"] == "accuracy"
        with Runtime(bundle, cache=False) as offline:
            (expected,) = offline.predict("mood", ["w21 w10 w30"])
        own.wait_for(lambda: scores(own, "mood", "w21 w10 w30") == pytest.approx(expected.scores, abs=1e-4))
        _, _, job = own.post("/v1/tasks/fresh:tune", {"rows": moods(60), "template": "lora", "epochs": 8, "lr": 0.01, "head_lr": 0.05, "batch_size": 8})  # fmt: skip
        job = finished(own, job["job"])
        assert job["state"] == "done", job
        if job["result"]["replaced"]:
            own.wait_for(lambda: own.predict("fresh", {"text": "w10"})[0] == 200)
        assert str(bundle) not in json.dumps(job)


def scores(own, task, text):
    return own.predict(task, {"text": text})[2]["predictions"][0]["scores"]


def test_rows_that_cannot_be_learnt_from_fail_the_job_with_the_reason_and_without_a_path(trainable, tmp_path):
    from served import serving

    bundle = shutil.copytree(trainable, tmp_path / "bundle")
    with serving(bundle, tmp_path, "--no-cache", "--allow-tuning") as own:
        rows = [{"text": "w10", "label": "ugly"}] * 30
        job = finished(own, own.post("/v1/tasks/mood:tune", {"rows": rows})[2]["job"])
        assert job["state"] == "failed"
        assert "ugly" in job["error"]["message"]
        assert "/" not in job["error"]["message"]
        assert own.post("/v1/tasks/moot:tune", {"rows": rows})[0] == 404
        assert own.post("/v1/tasks/new:tune", {"rows": rows, "template": "nope"})[0] == 404
        assert own.post("/v1/tasks/..:tune", {"rows": rows, "template": "lora"})[0] in (404, 422)
        assert own.get("/v1/jobs/nope")[0] == 404
        _, _, job = own.post("/v1/tasks/mood:tune", {"rows": moods(60), "epochs": 1000})
        assert own.ask("DELETE", f"/v1/jobs/{job['job']}")[0] == 202
        assert finished(own, job["job"])["state"] == "stopped"
        assert own.predict("mood", {"text": "w5"})[0] == 200
        _, _, job = own.post("/v1/tasks/mood:tune", {"rows": moods(60), "epochs": 1000})
        assert own.stop() == 0

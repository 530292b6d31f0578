"""Fine-tuning over HTTP: a job with progress and a result, whose task is served afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
torch = pytest.importorskip("torch", reason="exporting needs pip install edgepeft[train]")

from edgepeft.bundle.manifest import Manifest
from edgepeft.common.own_folder import locked
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.problems import Refused
from edgepeft.serve.schemas import TuneRequest
from edgepeft.serve.tuning import Jobs


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


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_takes_long_to_start_and_then_fails_holds_nobody_up(tmp_path, monkeypatch):
    starting, go_on = threading.Event(), threading.Event()

    def start(_):
        starting.set()
        assert go_on.wait(60)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", start)
    jobs, request, found = Jobs(tmp_path, None), TuneRequest(rows=moods(4)), []
    begin = threading.Thread(target=lambda: found.append(jobs.start("mood", request)), daemon=True)
    begin.start()
    assert starting.wait(60)
    until(lambda: jobs._states)
    (job,) = jobs._states  # not from the answer, which may not have come yet
    ask = threading.Thread(target=lambda: found.extend([jobs.state(job), jobs.stop(job)]), daemon=True)
    ask.start()
    ask.join(10)
    assert not ask.is_alive(), "the event loop would wait for the process to start"
    with pytest.raises(Refused, match="under way"):
        jobs.start("mood", request)
    go_on.set()
    until(lambda: jobs.state(job)["state"] != "running")
    assert (jobs.state(job)["state"], jobs.state(job)["error"]["code"]) == ("failed", "internal")
    begin.join(10)
    assert [each["state"] for each in found] == ["running"] * 3
    assert jobs.start("mood", request)["state"] == "running"  # the next may start


def test_a_run_that_is_stopped_before_its_process_is_there_is_stopped(trainable, tmp_path, monkeypatch):
    process = multiprocessing.get_context("spawn").Process
    starting, go_on, real = threading.Event(), threading.Event(), process.start

    def start(self):
        starting.set()
        assert go_on.wait(60)
        real(self)

    monkeypatch.setattr(process, "start", start)
    jobs = Jobs(shutil.copytree(trainable, tmp_path / "bundle"), 1)
    job = jobs.start("mood", TuneRequest(rows=moods(60), epochs=1000))["job"]
    assert starting.wait(60)
    jobs.stop(job)
    go_on.set()
    until(lambda: jobs.state(job)["state"] != "running")
    assert jobs.state(job)["state"] == "stopped"


@pytest.fixture
def bundle(trainable, tmp_path):
    return shutil.copytree(trainable, tmp_path / "bundle")


def ended(jobs, job):
    until(lambda: jobs.state(job)["state"] != "running")
    return jobs.state(job)


def content(bundle):
    return {path.relative_to(bundle): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def test_a_stopped_run_leaves_the_bundle_as_it_was(bundle):
    before, jobs = content(bundle), Jobs(bundle, 1)
    job = jobs.start("fresh", TuneRequest(rows=moods(60), template="lora", epochs=1000))["job"]
    until(lambda: list(bundle.glob(".tune/fresh/*.safetensors")))
    jobs.stop(job)
    assert ended(jobs, job)["state"] == "stopped"
    assert content(bundle) == before and not (bundle / ".tune").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "internal")])
def test_a_run_that_somebody_else_ended_failed_and_leaves_the_bundle_as_it_was(bundle, number, code):
    before, jobs = content(bundle), Jobs(bundle, 1)
    job = jobs.start("mood", TuneRequest(rows=moods(60), epochs=1000))["job"]
    until(lambda: list(bundle.glob(".tune/mood/*.safetensors")))
    os.kill(jobs._running.process.pid, number)
    state = ended(jobs, job)
    assert (state["state"], state["error"]["code"]) == ("failed", code)
    assert content(bundle) == before and not (bundle / ".tune").exists()


def test_a_run_of_another_process_keeps_its_checkpoints(bundle):
    jobs = Jobs(bundle, 1)
    with claim(bundle, "mood") as work:
        (work / "20.safetensors").write_bytes(b"theirs")
        state = ended(jobs, jobs.start("mood", TuneRequest(rows=moods(60)))["job"])
        assert state["state"] == "failed" and (work / "20.safetensors").read_bytes() == b"theirs"


def test_a_run_that_is_stopped_while_its_result_is_put_in_force_is_done(bundle):
    before, jobs = Manifest.read(bundle).task("mood"), Jobs(bundle, 1)
    with locked(bundle):
        request = TuneRequest(rows=moods(60), epochs=6, lr=0.01, head_lr=0.05, batch_size=8)
        job = jobs.start("mood", request)["job"]
        until(lambda: jobs.state(job).get("phase") == "commit")  # it waits for the lock
        jobs.stop(job)
        time.sleep(0.5)
    state = ended(jobs, job)
    assert (state["state"], state["result"]["replaced"]) == ("done", True)
    assert Manifest.read(bundle).task("mood").previous.sha256 == before.sha256


def test_options_that_exclude_each_other_fail_the_run_with_the_reason(bundle):
    jobs = Jobs(bundle, 1)
    state = ended(jobs, jobs.start("mood", TuneRequest(rows=moods(60), steps=1, epochs=1))["job"])
    assert state["state"] == "failed" and "exclude each other" in state["error"]["message"]


def test_a_row_may_be_its_words(bundle):
    rows = [{"words": row["text"].split(), "label": row["label"]} for row in moods(60)]
    jobs = Jobs(bundle, 1)
    state = ended(jobs, jobs.start("mood", TuneRequest(rows=rows, steps=2))["job"])
    assert state["state"] == "done", state

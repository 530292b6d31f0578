"""Real worker processes on tiny models: what crosses the pipe, and how a worker may end."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from edgepeft.bench.measuring.measure import WorkerProcess
from edgepeft.bench.measuring.worker import peak_rss_bytes, serve
from edgepeft.bench.planning.job import Job
from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.device.machine import cpu_quota, thread_count
from edgepeft.device.placement import Limits

GEMM = Job("gemm", threads=1)


def test_a_worker_measures_its_own_steps_and_peak():
    with WorkerProcess("gemm", GEMM, Limits(cores=1)) as worker:
        worker.ready()
        sample = worker.step(0)
        assert 0 < sample.seconds < 60
        assert 0 < sample.cpu_seconds < 60
        assert worker.in_force.cores == 1
        assert 20e6 < worker.finish() < 2e9


def test_a_waiting_worker_uses_no_processor():
    import time

    import psutil

    with WorkerProcess("gemm", Job("gemm", threads=2), Limits()) as worker:
        worker.ready()
        worker.step(0)
        child = psutil.Process(worker.pid)
        before = sum(child.cpu_times()[:2])
        time.sleep(0.6)
        # Two threads that kept spinning would have used about 1.2 s; ticks are 0.01 s.
        assert sum(child.cpu_times()[:2]) - before < 0.2


@pytest.mark.skipif(thread_count() < 2 or cpu_quota() is not None, reason="no second thread, or none that spins")
def test_no_thread_of_a_worker_runs_when_its_step_is_over():
    def running(pid):
        states = (task.joinpath("stat").read_text().rpartition(")")[2].split()[0] for task in threads(pid))
        return sum(state == "R" for state in states)

    def threads(pid):
        return Path(f"/proc/{pid}/task").iterdir()

    with WorkerProcess("gemm", Job("gemm", threads=2), Limits()) as worker:
        worker.ready()
        seen = []
        for _ in range(5):
            worker.step(0, rest=False)
            seen.append(running(worker.pid))
            worker.step(0)
            assert running(worker.pid) == 0
        assert any(seen)  # it spins for work, which takes a core


def test_a_crash_is_an_error_with_the_workers_last_words():
    job = Job("infer_onnxruntime", threads=1, batches=((2,),), bundle="/nowhere/at/all", vocab_size=9)
    with WorkerProcess("infer x", job, Limits()) as worker, pytest.raises(EdgepeftError, match="nowhere"):
        worker.ready()


def test_a_killed_worker_is_an_error_not_a_hang():
    with WorkerProcess("the gemm probe", GEMM, Limits()) as worker:
        worker.ready()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EdgepeftError, match="the gemm probe ended unexpectedly"):
            worker.step(0)


def test_a_peer_that_is_no_model_is_a_usage_error_by_name(tmp_path):
    path = tmp_path / "odd.onnx"
    path.write_bytes(b"not a model")
    job = Job("peer", threads=1, batches=((2,),), model=str(path), vocab_size=9)
    with WorkerProcess("peer odd", job, Limits()) as worker, pytest.raises(UsageError, match=r"odd\.onnx"):
        worker.ready()


def test_a_limit_too_small_for_the_work_says_what_is_allowed():
    allowed = 24 << 20  # less than Python with NumPy and ONNX Runtime
    with pytest.raises(DoesNotFit, match=f"{allowed} bytes .* more than that needed"):  # noqa: SIM117
        with WorkerProcess("gemm", GEMM, Limits(memory_bytes=allowed)) as worker:
            worker.ready()
            worker.step(0)


def answers(*lines):
    replies = io.StringIO()
    serve(io.StringIO("".join(line + "\n" for line in lines)), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_the_protocol_answers_every_line_once():
    found = answers(GEMM.to_json(), '{"step": 0}', '{"step": 0}', '{"close": true}')
    assert [set(answer) for answer in found] == [
        {"ready", "notes"},
        {"seconds", "cpu_seconds"},
        {"seconds", "cpu_seconds"},
        {"peak_rss_bytes"},
    ]


def test_an_allocation_that_fails_is_told_from_a_crash(monkeypatch):
    from edgepeft.bench.workloads import probes

    for error, kind in (
        (MemoryError(), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (KeyError("x"), "crash"),
    ):

        def fail(job, error=error):
            raise error

        monkeypatch.setattr(probes, "gemm", fail)
        assert answers(GEMM.to_json())[0]["error"]["kind"] == kind


def test_the_peak_is_this_processs_own():
    block = bytearray(os.urandom(1)) * 30_000_000
    assert peak_rss_bytes() > len(block)

"""Files that are replaced while several batches run: one reads them again, alone, and everybody is answered."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="needs pip install edgepeft[serve]")

from edgepeft.common.errors import BundleError
from edgepeft.serve.service import Service
from edgepeft.serve.settings import Settings
from edgepeft.tasks._answers import Prediction


class Runtime:
    """Answers with its version; ``hold`` is waited for by those who ask for the task of that name."""

    tasks = ("a", "b")
    bundle = SimpleNamespace(manifest=None)

    def __init__(self, damaged=()):
        self.version, self.damaged, self.hold = 0, set(damaged), threading.Event()
        self.asked, self.under_way, self.beside = threading.Semaphore(0), 0, []

    def predict_mixed(self, tasks, texts, *, strict):
        self.under_way += 1
        before = self.version
        self.asked.release()
        if "slow" in texts:
            self.hold.wait(10)
        if "short" in texts:
            time.sleep(0.005)
        if self.version == 0 and self.damaged & set(tasks):
            self.under_way -= 1
            raise BundleError("its file was replaced")
        self.under_way -= 1
        assert before == self.version
        return [Prediction(task, str(self.version), 1.0, {}, ()) for task in tasks]

    def reload(self):
        self.beside.append(self.under_way)
        self.version += 1
        return self.tasks

    def begun(self, pool, ask, *row):
        """The future answer to a row that has reached this runtime."""
        found = pool.submit(ask, *([part] for part in row))
        assert self.asked.acquire(timeout=10)
        return found


@pytest.fixture
def service(bundle):
    found = Service(Settings(bundle=bundle, no_cache=True).model_copy(update={"workers": 3}))  # on as many cores
    found.runtime.close()
    manifest = bundle / "edgepeft.json"
    fresh = manifest.with_name("fresh")
    fresh.write_bytes(manifest.read_bytes())
    fresh.replace(manifest)
    return found


def test_of_two_batches_that_fail_one_reads_the_files_and_both_are_answered(service):
    service.runtime = runtime = Runtime(damaged="ab")
    with ThreadPoolExecutor(2) as pool:
        slow = runtime.begun(pool, service.answer, "a", "slow")
        quick = runtime.begun(pool, service.answer, "b", "quick")
        runtime.hold.set()
        assert [answer.label for found in (slow, quick) for answer in found.result(10)] == ["1", "1"]
    assert runtime.beside == [0]


def test_files_are_not_read_beside_an_answer_and_no_answer_begins_beside_that(service):
    service.runtime = runtime = Runtime(damaged="b")
    with ThreadPoolExecutor(3) as pool:
        slow = runtime.begun(pool, service.answer, "a", "slow")
        failing = runtime.begun(pool, service.answer, "b", "x")
        assert not runtime.asked.acquire(timeout=0.1)  # it waits for the slow one before it tries again
        after = pool.submit(service.answer, ["a"], ["y"])
        assert not runtime.asked.acquire(timeout=0.1)
        runtime.hold.set()
        assert [found.result(10)[0].label for found in (slow, failing, after)] == ["0", "1", "1"]
    assert runtime.beside == [0]


def test_answers_without_a_pause_do_not_keep_the_files_from_being_read(service):
    service.runtime = Runtime(damaged="b")
    over = threading.Event()

    def answers():
        while not over.is_set():
            service.answer(["a"], ["short"])

    with ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(answers) for _ in range(2)]
        found = pool.submit(service.answer, ["b"], ["x"])
        try:
            assert found.result(3)[0].label == "1"
        finally:
            over.set()
        for each in busy:
            each.result(10)


def test_a_failure_that_no_file_explains_is_raised_and_nothing_is_read(service):
    service.runtime = runtime = Runtime(damaged="a")
    service.reload()
    runtime.version = 0
    with pytest.raises(BundleError, match="replaced"):
        service.answer(["a"], ["x"])
    assert runtime.version == 0

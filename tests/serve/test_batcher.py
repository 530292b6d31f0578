"""Requests that come together run together; the queue and the wait are bounded; one bad request fails alone."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

pytest.importorskip("starlette", reason="needs pip install edgepeft[serve]")

from edgepeft.common.errors import BundleError
from edgepeft.serve.batcher import Batcher, Closing, DeadlinePassed, QueueFull
from edgepeft.serve.settings import ServiceLimits


class Slow:
    """Answers (task, text) for each row; notes its batches; waits at a gate."""

    def __init__(self, gated=False):
        self.batches, self.gate = [], threading.Event()
        if not gated:
            self.gate.set()

    def __call__(self, tasks, texts):
        self.batches.append(list(texts))
        self.gate.wait(10)
        if "bad" in texts:
            raise ValueError("a row that nobody can answer")
        if "panic" in texts:
            raise KeyboardInterrupt  # as PyO3's PanicException, no Exception
        return list(zip(tasks, texts, strict=True))


def run(scenario, slow, kind=lambda _: None, workers=1, **limits):
    batcher = Batcher(slow, ServiceLimits(**limits), kind=kind, workers=workers)
    batcher.start()
    try:
        return asyncio.run(scenario(batcher))
    finally:
        slow.gate.set()
        batcher.close()


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen within 5 s")


async def behind(batcher, slow, *requests):
    """The answers of a first request that runs, and of those (tasks, texts) that wait meanwhile; or their errors."""
    asked = [asyncio.create_task(batcher.submit(["t"], ["first"]))]
    await until(lambda: slow.batches)
    asked += [asyncio.create_task(batcher.submit(*request)) for request in requests]
    await until(lambda: batcher.queued_rows == sum(len(texts) for _, texts in requests))
    slow.gate.set()
    return await asyncio.gather(*asked, return_exceptions=True)


def test_what_waits_while_a_batch_runs_is_the_next_batch_and_everybody_gets_their_own_answer():
    slow = Slow(gated=True)

    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit(["t"], ["first"], client=0))
        await until(lambda: slow.batches)
        others = [asyncio.create_task(batcher.submit([f"t{i}"] * 2, [f"{i}a", f"{i}b"], client=i)) for i in range(5)]
        await until(lambda: batcher.queued_rows == 10)
        slow.gate.set()
        return await first, await asyncio.gather(*others)

    first, others = run(scenario, slow)
    assert first == [("t", "first")]
    assert others == [[(f"t{i}", f"{i}a"), (f"t{i}", f"{i}b")] for i in range(5)]
    assert [len(batch) for batch in slow.batches] == [1, 10]


def test_a_batch_holds_whole_requests_up_to_its_size():
    slow = Slow(gated=True)

    requests = [(["t"] * n, [str(n)] * n) for n in (3, 4, 5, 9)]
    run(lambda batcher: behind(batcher, slow, *requests), slow, batch_rows=8, rows=9)
    assert [len(batch) for batch in slow.batches] == [1, 7, 5, 9]


def test_the_request_that_waited_longest_runs_with_those_of_its_kind_and_the_others_after_it():
    slow = Slow(gated=True)

    requests = [(named, named) for named in (["a1"], ["b1"], ["a2", "a1"], ["a1", "b2"], ["b2"], ["a2"])]
    answers = run(lambda batcher: behind(batcher, slow, *requests), slow, kind=lambda task: task[0], batch_rows=4)
    # What is of both kinds runs after them: it would hold up whom it ran with.
    assert slow.batches == [["first"], ["a1", "a2", "a1", "a2"], ["b1", "b2"], ["a1", "b2"]]
    assert answers[4] == [("a1", "a1"), ("b2", "b2")]


def test_of_one_kind_none_overtakes_a_request_that_no_longer_fits():
    slow = Slow(gated=True)

    requests = [(["t"] * n, [str(n)] * n) for n in (3, 2, 1)]
    run(lambda batcher: behind(batcher, slow, *requests), slow, batch_rows=4, rows=4)
    assert [len(batch) for batch in slow.batches] == [1, 3, 3]


def test_a_single_client_never_waits_for_others():
    slow = Slow()

    async def scenario(batcher):
        begin = time.monotonic()
        for _ in range(5):
            await batcher.submit(["t"], ["x"], client="only")
        return time.monotonic() - begin

    assert run(scenario, slow, wait_s=10.0) < 5


def test_a_row_waits_for_a_client_that_was_active_and_no_longer_than_the_limit():
    slow = Slow()

    async def scenario(batcher):
        await batcher.submit(["t"], ["x"], client="one")
        await asyncio.gather(batcher.submit(["t"], ["a"], client="one"), batcher.submit(["t"], ["b"], client="two"))
        await batcher.submit(["t"], ["y"], client="one")  # two sends nothing more

    run(scenario, slow, wait_s=0.3)
    assert slow.batches[1:] == [["a", "b"], ["y"]] or slow.batches[1:] == [["a"], ["b"], ["y"]]


def test_a_client_that_is_gone_is_no_longer_waited_for():
    slow = Slow()

    async def scenario(batcher):
        await asyncio.gather(*(batcher.submit(["t"], ["x"], client=name) for name in ("one", "two", "three")))
        batcher.forget("two")
        begin = time.monotonic()
        waiting = asyncio.create_task(batcher.submit(["t"], ["y"], client="one"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        batcher.forget("three")
        await waiting
        return time.monotonic() - begin

    assert run(scenario, slow, wait_s=0.9) < 0.5


def test_more_rows_than_the_queue_holds_are_refused_with_a_time_to_come_back():
    slow = Slow(gated=True)

    async def scenario(batcher):
        tasks = [asyncio.create_task(batcher.submit(["t"], ["first"]))]
        await until(lambda: slow.batches)
        tasks += [asyncio.create_task(batcher.submit(["t"] * 4, ["x"] * 4))]
        await until(lambda: batcher.queued_rows == 4)
        with pytest.raises(QueueFull) as full:
            await batcher.submit(["t"] * 3, ["y"] * 3)
        slow.gate.set()
        await asyncio.gather(*tasks)
        return full.value.retry_after_s

    assert 1 <= run(scenario, slow, queued_rows=6, rows=4) <= 60
    assert "y" not in [text for batch in slow.batches for text in batch]


def test_a_request_whose_deadline_passes_in_the_queue_is_never_run_and_leaves_room():
    slow = Slow(gated=True)

    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit(["t"], ["first"]))
        await until(lambda: slow.batches)
        with pytest.raises(DeadlinePassed):
            await batcher.submit(["t"], ["late"], deadline_s=0.05)
        assert batcher.queued_rows == 0
        slow.gate.set()
        await first

    run(scenario, slow)
    assert slow.batches == [["first"]]


def test_a_request_that_fails_takes_no_other_with_it():
    slow = Slow(gated=True)

    requests = [(["t"], [text]) for text in ("good", "bad", "fine")]
    _, good, bad, fine = run(lambda batcher: behind(batcher, slow, *requests), slow)
    assert (good, fine) == ([("t", "good")], [("t", "fine")])
    assert isinstance(bad, ValueError)


def test_a_task_that_fails_in_a_request_of_several_leaves_the_others_their_answers():
    def rows(tasks, texts):
        if "bad" in tasks:
            raise BundleError("its graph stops")
        return list(zip(tasks, texts, strict=True))

    rows.gate = threading.Event()

    async def scenario(batcher):
        return await batcher.submit(["good", "bad", "fine", "bad"], ["a", "b", "c", "d"])

    good, bad, fine, again = run(scenario, rows)
    assert (good, fine) == (("good", "a"), ("fine", "c"))
    assert isinstance(bad, BundleError)
    assert isinstance(again, BundleError)


def test_closing_answers_what_is_queued_and_takes_nothing_new():
    slow = Slow(gated=True)

    async def scenario(batcher):
        tasks = [asyncio.create_task(batcher.submit(["t"], [text])) for text in ("one", "two")]
        await until(lambda: slow.batches)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.05)
        with pytest.raises(Closing):
            await batcher.submit(["t"], ["three"])
        slow.gate.set()
        await closing
        return await asyncio.gather(*tasks)

    assert run(scenario, slow) == [[("t", "one")], [("t", "two")]]


def test_a_call_between_batches_runs_while_no_batch_does():
    slow = Slow(gated=True)

    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit(["t"], ["first"]))
        await until(lambda: slow.batches)
        call = asyncio.create_task(batcher.between(lambda: len(slow.batches)))
        await asyncio.sleep(0.05)
        assert not call.done()
        slow.gate.set()
        await first
        return await call

    assert run(scenario, slow) == 1


def test_a_panic_in_a_library_fails_its_request_and_the_next_is_answered():
    async def scenario(batcher):
        with pytest.raises(RuntimeError):
            await batcher.submit(["t"], ["panic"])
        return await batcher.submit(["t"], ["next"])

    assert run(scenario, Slow()) == [("t", "next")]


def test_as_many_batches_as_there_are_workers_run_at_once_and_no_call_beside_them():
    slow = Slow(gated=True)

    async def scenario(batcher):
        tasks = [asyncio.create_task(batcher.submit([name], [name], client=name)) for name in ("a", "b", "c")]
        await until(lambda: len(slow.batches) == 2)
        call = asyncio.create_task(batcher.between(lambda: len(slow.batches)))
        await asyncio.sleep(0.05)
        assert len(slow.batches) == 2
        assert not call.done()
        later = asyncio.create_task(batcher.submit(["d"], ["d"], client="d"))
        slow.gate.set()
        before = await call
        return before, await asyncio.gather(*tasks, later)

    before, answers = run(scenario, slow, kind=lambda task: task, workers=2)
    assert before == 2  # the call goes before what had not begun
    assert answers == [[(name, name)] for name in "abcd"]


def test_many_clients_of_several_workers_are_all_answered():
    slow = Slow()

    async def client(batcher, name):
        return [await batcher.submit([f"{name % 3}"], [f"{name}-{i}"], client=name) for i in range(50)]

    async def scenario(batcher):
        return await asyncio.gather(*(client(batcher, name) for name in range(9)))

    found = run(scenario, slow, kind=lambda task: task, workers=3, wait_s=0.002)
    assert found == [[[(f"{name % 3}", f"{name}-{i}")] for i in range(50)] for name in range(9)]


def test_no_batch_begins_while_a_call_between_batches_runs():
    slow, inside = Slow(), []

    async def scenario(batcher):
        entered, leave = threading.Event(), threading.Event()

        def call():
            entered.set()
            leave.wait(10)
            return list(slow.batches)

        calling = asyncio.create_task(batcher.between(call))
        await until(entered.is_set)
        asked = [asyncio.create_task(batcher.submit(["t"], [name], client=name)) for name in ("a", "b")]
        await asyncio.sleep(0.1)
        inside.append(list(slow.batches))
        leave.set()
        return await calling, await asyncio.gather(*asked)

    seen, answers = run(scenario, slow, workers=3)
    assert (seen, inside) == ([], [[]])
    assert answers == [[("t", "a")], [("t", "b")]]

"""Micro-batching: the request that has waited longest runs with all those that can share its passes.

Threads run batches, one by default.  While they are busy the queue fills.  The others, of tasks whose rows gain
nothing from this batch, are the next ones: meanwhile the event loop writes answers and reads what their clients ask
next, and rows of a kind gather.  When a thread is free, the first row waits at most ``wait_s`` for others, and only
while a client that was active lately waits for nothing: a single client never waits.
"""

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.data.pattern import UnreadableRow
from edgepeft.runtime.inputs import Readable
from edgepeft.runtime.prediction import RowResult
from edgepeft.serve.settings import ServiceLimits

log = logging.getLogger("edgepeft.serve")

T = TypeVar("T")
Tell = Callable[[str], object]  # has each piece of a text

_ACTIVE_S = 1.0  # after its last request a client is expected to send another
_MAX_RETRY_S = 60
_SMOOTHING = 0.2  # of the measured rate: the last ten batches or so count


class QueueFull(Exception):
    """There is no room for the request's rows; ``retry_after_s`` is when there should be."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class DeadlinePassed(Exception):
    """The answer did not come in time."""


class Closing(Exception):
    """The service is about to stop and takes nothing new."""


@dataclass(eq=False)
class QueuedRequest:
    """One request's rows; compared by identity."""

    tasks: Sequence[str | None]
    texts: Sequence[Readable]
    client: Hashable
    arrived: float
    future: asyncio.Future[Sequence[RowResult]]
    tell: Tell | None = None  # in the event loop
    most: int | None = None  # tokens of a text
    schema: Mapping[str, Any] | None = None  # to which a text keeps
    told: bool = False  # a piece, so that it can no longer begin anew
    given: bool = False

    @property
    def left(self) -> bool:
        """Whether somebody still waits for it and nothing was given."""
        return not self.given and not self.future.done()

    def say(self, piece: str) -> None:
        """Tell a piece, where that is wanted; from any thread."""
        if self.tell is not None and not self.future.done():
            self.told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
                self.future.get_loop().call_soon_threadsafe(self.tell, piece)

    def give(self, result: Sequence[RowResult] | Exception) -> None:
        """The answers of all rows, or why there are none; from any thread."""
        give([(self, result)])


def give(results: Sequence[tuple[QueuedRequest, Sequence[RowResult] | Exception]]) -> None:
    """Give several requests their answers at once."""
    for job, _ in results:
        job.given = True
    if results:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
            loop = results[0][0].future.get_loop()
            loop.call_soon_threadsafe(settle, [(job.future, result) for job, result in results])


def as_exception(error: BaseException) -> Exception:
    """A panic of the tokenizers library is no Exception, and must not end the thread either."""
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def settle(results: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set futures, from the thread of their loop."""
    for future, result in results:
        if future.done():  # its deadline passed
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class Batcher:
    """A bounded queue and the threads that empty it with ``run``; ``observe`` gets each batch's rows and seconds.

    Tasks of one ``kind`` share their passes.  These threads call it for every request that waits: it must be quick.
    With several ``workers``, as many threads at once call ``run`` and ``observe``.

    A batch all of whose tasks ``writes`` says to write text goes to ``write``, with a function that gives the requests
    which may join it: those that are next, so that what waits of another kind is not passed by.
    """

    def __init__(
        self,
        run: Callable[[Sequence[str | None], Sequence[Readable]], Sequence[RowResult]],
        limits: ServiceLimits,
        observe: Callable[[int, float], object] = lambda *_: None,
        kind: Callable[[str | None], Hashable] = lambda _: None,
        workers: int = 1,
        *,
        write: Callable[[Sequence[QueuedRequest], Callable[[], Sequence[QueuedRequest]]], None] = lambda *_: None,
        writes: Callable[[str | None], bool] = lambda _: False,
    ) -> None:
        self._run_rows, self.limits, self._observe, self._kind = run, limits, observe, kind
        self._write, self._writes = write, writes
        self._jobs: deque[QueuedRequest] = deque()
        self._calls: deque[Callable[[], None]] = deque()  # what runs between batches
        self._clients: dict[Hashable, float] = {}  # when each sent its last request
        self._rate = 0.0  # rows per second, of a thread that is busy
        self._under_way: list[Sequence[QueuedRequest]] = []  # batches that run; calls are one without requests
        self._gathering = 0  # threads that wait for others beside those that are queued
        self._closing = False
        self._ready = threading.Condition()  # of everything above
        self._threads = [
            threading.Thread(target=self._work, name=f"edgepeft-batches-{i}", daemon=True) for i in range(workers)
        ]

    def start(self) -> None:
        """Begin to run batches."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Take nothing new, answer what is queued, end the threads."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def queued_rows(self) -> int:
        """Rows that wait; those of running batches do not count."""
        with self._ready:
            return self._rows

    @property
    def _rows(self) -> int:
        return sum(len(job.texts) for job in self._jobs)

    async def submit(
        self,
        tasks: Sequence[str | None],
        texts: Sequence[Readable],
        *,
        client: Hashable = None,
        deadline_s: float | None = None,
        tell: Tell | None = None,
        most: int | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Sequence[RowResult]:
        """Answers of ``tasks[i]`` to ``texts[i]``; ``client`` is whose connection they came on, the rest as a job's."""
        limit = self.limits.deadline_s if deadline_s is None else min(deadline_s, self.limits.deadline_s)
        loop = asyncio.get_running_loop()
        job = QueuedRequest(tasks, texts, client, monotonic(), loop.create_future(), tell, most, schema)
        with self._ready:
            if self._closing:
                raise Closing
            if self._rows + len(texts) > self.limits.queued_rows:
                seconds = self._rows / (self._rate * len(self._threads)) if self._rate else 1.0
                raise QueueFull(min(_MAX_RETRY_S, max(1, math.ceil(seconds))))
            self._clients[client] = job.arrived
            self._jobs.append(job)
            if not (self._gathering and self._others_expected()):  # a thread would only go back to sleep
                self._ready.notify()
        passing = loop.call_later(limit, settle, [(job.future, DeadlinePassed())])
        try:
            return await job.future
        except (DeadlinePassed, asyncio.CancelledError):
            with self._ready, contextlib.suppress(ValueError):  # it runs already
                self._jobs.remove(job)
            raise
        finally:
            passing.cancel()

    def forget(self, client: Hashable) -> None:
        """The client is gone: no batch waits for another request of it."""
        with self._ready:
            self._clients.pop(client, None)
            if self._gathering and not self._others_expected():
                self._ready.notify()

    async def between(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread of the batches while none runs, and return its result."""
        future: Future[T] = Future()

        def called() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(as_exception(error))

        with self._ready:
            if self._closing:
                raise Closing
            self._calls.append(called)
            self._ready.notify()
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if isinstance(batch, tuple):
                for call in batch:
                    call()
                self._ended(())
            else:
                begin = monotonic()
                if left := self._written(batch) if self._written_alone(batch[0]) else batch:
                    self._answer(left)
                rows, seconds = sum(len(job.texts) for job in batch), monotonic() - begin
                self._ended(batch, rows / max(seconds, 1e-6))
                self._observe(rows, seconds)

    def _next(self) -> list[QueuedRequest] | tuple[Callable[[], None], ...] | None:
        """The next batch, or what is to run between two; None when there is nothing more to do."""
        with self._ready:
            while True:
                if self._calls_first:
                    if not self._under_way:
                        calls = tuple(self._calls)
                        self._calls.clear()
                        self._under_way.append(())
                        return calls
                elif self._jobs:
                    if batch := self._gathered():
                        self._under_way.append(batch)
                        if self._jobs:
                            self._ready.notify()
                        return batch
                    continue
                elif self._closing:
                    return None
                self._ready.wait()

    def _ended(self, batch: Sequence[QueuedRequest], rate: float = 0.0) -> None:
        with self._ready:
            if rate:
                self._rate = rate if not self._rate else (1 - _SMOOTHING) * self._rate + _SMOOTHING * rate
            self._under_way.remove(batch)
            if self._calls or self._closing or not batch:
                self._ready.notify_all()

    def _gathered(self) -> list[QueuedRequest]:
        """The next batch, once no more is expected; nothing where another thread took it, or calls come first."""
        until = self._jobs[0].arrived + self.limits.wait_s
        self._gathering += 1
        while self._others_expected() and not self._calls_first and (left := until - monotonic()) > 0:
            self._ready.wait(left)
        self._gathering -= 1
        return [] if self._calls_first else self._take()

    @property
    def _calls_first(self) -> bool:
        """Whether calls wait, or run: no batch begins then."""
        return bool(self._calls) or () in self._under_way

    def _others_expected(self) -> bool:
        if self._closing or not self._jobs or self._rows >= self.limits.batch_rows:
            return False
        if self._clients.keys() == {self._jobs[0].client}:
            return False
        now = monotonic()
        self._clients = {client: at for client, at in self._clients.items() if now - at < _ACTIVE_S}
        waiting = {job.client for batch in (self._jobs, *self._under_way) for job in batch}
        return not waiting.issuperset(self._clients)

    def _take(self) -> list[QueuedRequest]:
        """The first request in any case, and those of its kinds in their order, as many as fit into a batch."""
        if len(self._jobs) == 1:
            return [self._jobs.popleft()]
        batch: list[QueuedRequest] = []
        rows = 0
        kinds: frozenset[Hashable] = frozenset()
        for job in self._jobs:
            own = frozenset(map(self._kind, job.tasks))
            if batch and not (own <= kinds and self._written_alone(job) == self._written_alone(batch[0])):
                continue
            if batch and rows + len(job.texts) > self.limits.batch_rows:
                break
            kinds = kinds or own
            batch.append(job)
            rows += len(job.texts)
        for job in batch:
            self._jobs.remove(job)
        return batch

    def _written_alone(self, job: QueuedRequest) -> bool:
        """Whether it is of tasks that write text, and no others."""
        return all(map(self._writes, job.tasks))

    def _joining(self, batch: list[QueuedRequest]) -> list[QueuedRequest]:
        """The requests that join a batch which is being written: the next ones, if they are of its kinds and fit."""
        joined: list[QueuedRequest] = []
        with self._ready:
            rows = sum(len(job.texts) for job in batch if job.left)
            kinds = frozenset(map(self._kind, batch[0].tasks))
            while self._jobs and not self._calls_first:
                job = self._jobs[0]
                rows += len(job.texts)
                if rows > self.limits.batch_rows or not kinds.issuperset(map(self._kind, job.tasks)):
                    break
                joined.append(self._jobs.popleft())
            batch += joined
        return joined

    def _written(self, batch: list[QueuedRequest]) -> list[QueuedRequest]:
        """Write the texts of a batch; what is left to be answered by ``run``, of requests that had nothing told."""
        try:
            self._write(tuple(batch), lambda: self._joining(batch))
        except BaseException as error:
            give([(job, as_exception(error)) for job in batch if job.left and (job.told or job.schema is not None)])
        return [job for job in batch if job.left]

    def _answer(self, batch: list[QueuedRequest]) -> None:
        """One run for all; where it fails, each request alone and then each task, so that no other one fails."""
        tasks, texts = [t for job in batch for t in job.tasks], [t for job in batch for t in job.texts]
        try:
            rows = iter(self._run_rows(tasks, texts))
        except BaseException as error:
            if len(batch) > 1:
                for job in batch:
                    self._answer([job])
            else:
                give([(batch[0], self._by_task(batch[0]) or as_exception(error))])
            return
        give([(job, list(islice(rows, len(job.texts)))) for job in batch])

    def _by_task(self, job: QueuedRequest) -> list[RowResult]:
        """The answers of a failed request's tasks, each run alone, and of one with a row that cannot be read each row;
        none where the request has but one row, or fails otherwise."""
        answers: dict[int, RowResult] = {}
        by_task: dict[str | None, list[int]] = {}
        for row, task in enumerate(job.tasks):
            by_task.setdefault(task, []).append(row)
        left = [*by_task.values()] if len(job.tasks) > 1 else []
        while left:
            rows = left.pop(0)
            task = job.tasks[rows[0]]
            try:
                answers |= zip(rows, self._run_rows([task] * len(rows), [job.texts[row] for row in rows]), strict=True)
            except UnreadableRow as error:
                if len(rows) > 1:
                    left += [[row] for row in rows]
                else:  # it was the first of those that ran
                    answers[rows[0]] = UnreadableRow(str(error).replace("row 0", f"row {rows[0]}", 1))
            except BaseException as error:  # whatever a task makes of the libraries below is its own error
                if len(rows) == len(job.tasks):
                    return []
                if not isinstance(error, EdgepeftError):
                    log.exception("task %s failed", task)
                    error = BundleError(f"task {task} failed: {as_exception(error)!r}.")
                answers |= dict.fromkeys(rows, error)
        return [answers[row] for row in sorted(answers)]

"""Text as it is written: the events are the plain answer in pieces, requests join the batch, who leaves is not written for."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from deltas import TEXTS
from served import Served, serving
from starlette.responses import StreamingResponse

from edgepeft.common.errors import BundleError, DoesNotFit
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.batcher import Batcher, DeadlinePassed, QueuedRequest
from edgepeft.serve.problems import refusal_of
from edgepeft.serve.routes import streamed
from edgepeft.serve.service import Written
from edgepeft.serve.settings import ServiceLimits

WORDS = [text.first for text in TEXTS]


@pytest.fixture(scope="module")
def bundle(several_texts: Path) -> Path:
    return several_texts


@pytest.fixture(scope="module")
def writing(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(bundle, tmp_path_factory.mktemp("stream"), "--no-cache") as running:
        yield running


def parsed(content: bytes) -> list[tuple[str, Any]]:
    """As the HTML Standard reads a stream of events, each with one line of data."""
    events = []
    for block in content.decode("ascii").removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((fields["event"], json.loads(fields["data"])))
    return events


@pytest.mark.parametrize(("task", "text"), [("lora-1", WORDS[5]), ("lora-0", WORDS[20]), ("full", WORDS[2])])
def test_the_events_are_the_plain_answer_in_pieces(writing: Served, task: str, text: str):
    status, headers, content = writing.post(f"/v1/tasks/{task}:stream", {"text": text})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *pieces, (last, answer) = parsed(content)
    assert last == "answer" and {name for name, _ in pieces} <= {"piece"}
    assert "".join(piece["text"] for _, piece in pieces) == answer["text"]
    assert writing.predict(task, {"text": text})[2]["predictions"] == [answer]


REFUSED = [
    ("nobody", {"text": "w5"}, 404, "unknown_task"),
    ("mood", {"text": "w5"}, 422, "invalid"),
    ("lora-0", {"rows": ["w5"]}, 422, "invalid"),
    ("lora-0", {"text": "w" * 300_000}, 413, "text_too_long"),
]


@pytest.mark.parametrize(("task", "body", "status", "code"), REFUSED)
def test_what_is_refused_is_an_ordinary_answer(writing: Served, task: str, body: Any, status: int, code: str):
    answer = writing.post(f"/v1/tasks/{task}:stream", body)
    assert (answer[0], answer[2]["error"]["code"]) == (status, code)


def test_a_client_that_leaves_in_the_middle_harms_nobody(writing: Served):
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", writing.port, timeout=30)
        body = json.dumps({"text": WORDS[20]})
        connection.request("POST", "/v1/tasks/lora-0:stream", body, {"Content-Type": "application/json"})
        assert connection.getresponse().read(1)
        connection.close()
    assert writing.predict("lora-1", {"text": WORDS[5]})[0] == 200
    assert "Traceback" not in writing.log


@pytest.mark.parametrize(
    ("error", "code"),
    [(BundleError("bundle/tasks/t.onnx is damaged."), "task_unavailable"), (DeadlinePassed(), "deadline_passed")],
)
def test_what_goes_wrong_after_a_piece_is_the_last_event(error: Exception, code: str):
    async def fails(tell: Any) -> Any:
        tell("half a ")
        await asyncio.sleep(0)
        raise error

    async def read() -> bytes:
        answer = await streamed("t", fails)
        assert isinstance(answer, StreamingResponse)
        return b"".join([part async for part in answer.body_iterator])  # type: ignore[misc]

    (piece, said), (last, why) = parsed(asyncio.run(read()))
    assert (piece, said, last, why["error"]["code"]) == ("piece", {"text": "half a "}, "error", code)
    assert "bundle/" not in json.dumps(why)


def test_what_takes_too_much_memory_is_refused_by_name():
    refused = refusal_of(DoesNotFit("a text of 9 tokens takes 7 MB of keys and values."))
    assert (refused.status, refused.code) == (503, "does_not_fit")


def job(task: str, texts: list[str], tell: Any = None) -> QueuedRequest:
    loop = asyncio.get_running_loop()
    return QueuedRequest([task] * len(texts), texts, None, monotonic(), loop.create_future(), tell)


def written(bundle: Path, scenario: Callable[[Written], Any]) -> Any:
    with Runtime(bundle, threads=1, cache=False) as runtime:
        plain = {
            row: runtime.write(row[0], [row[1]], Decoding(20))[0]
            for row in [("lora-0", WORDS[20]), ("lora-1", WORDS[5])]
        }
        return plain, asyncio.run(scenario(Written(runtime.writing(Decoding(20)), lambda _: {})))


def test_a_request_joins_while_another_is_written_and_both_are_answered(bundle: Path):
    pieces: list[tuple[str, str]] = []

    async def scenario(batch: Written) -> Any:
        first = job("lora-0", [WORDS[20]], lambda piece: pieces.append(("first", piece)))
        second = job("lora-1", [WORDS[5]], lambda piece: pieces.append(("second", piece)))
        bad, foreign = job("lora-1", [7]), job("r-0", [WORDS[3]])  # type: ignore[list-item]
        later: list[list[QueuedRequest]] = [[], [second, bad], [], [foreign]]
        await asyncio.to_thread(batch.run, [first], lambda: later.pop(0) if later else [])
        return [(await each.future)[0] for each in (first, second, foreign)], await asyncio.gather(
            bad.future, return_exceptions=True
        )

    plain, (answers, bad) = written(bundle, scenario)
    assert answers[:2] == list(plain.values()) and answers[2].task == "r-0"
    assert "a text, or a pair" in str(bad[0])
    for who, answer in zip(("first", "second"), answers, strict=False):
        assert "".join(piece for name, piece in pieces if name == who) == answer.text
    begun = pieces.index(next(each for each in pieces if each[0] == "second"))
    assert 0 < begun < max(i for i, each in enumerate(pieces) if each[0] == "first")  # while the first went on


def test_who_is_gone_is_written_no_further(bundle: Path):
    async def scenario(batch: Written) -> int:
        gone, steps = job("lora-0", [WORDS[20]] * 3), 0

        def more() -> list[QueuedRequest]:
            nonlocal steps
            steps += 1
            if steps == 3:
                gone.future.get_loop().call_soon_threadsafe(gone.future.cancel)
                while not gone.future.done():
                    pass
            return []

        await asyncio.to_thread(batch.run, [gone], more)
        return steps

    assert written(bundle, scenario)[1] <= 5


def batched(scenario: Callable[[Batcher], Any], write: Any) -> Any:
    batcher = Batcher(
        lambda tasks, texts: [("run", text) for text in texts],  # type: ignore[misc]
        ServiceLimits(),
        kind=lambda task: (task or "")[0],
        write=write,
        writes=lambda task: (task or "").startswith("t"),
    )
    batcher.start()
    try:
        return asyncio.run(scenario(batcher))
    finally:
        batcher.close()


def test_only_what_comes_next_and_is_of_its_kind_joins_a_batch_that_is_written():
    begun, queued = threading.Event(), threading.Event()
    joined: list[list[str]] = []

    def write(jobs: Any, more: Any) -> None:
        begun.set()
        queued.wait(10)
        all_jobs = [*jobs, *more(), *more()]
        joined.append([text for each in all_jobs for text in each.texts])
        for each in all_jobs:
            each.give([("written", text) for text in each.texts])

    async def scenario(batcher: Batcher) -> Any:
        asked = [asyncio.create_task(batcher.submit(["t1"], ["a"]))]
        await asyncio.to_thread(begun.wait, 10)
        for task, text in [("t2", "b"), ("t1", "c"), ("other", "d"), ("t1", "e")]:
            asked.append(asyncio.create_task(batcher.submit([task], [text])))
            await asyncio.sleep(0)
        queued.set()
        return await asyncio.gather(*asked)

    answers = batched(scenario, write)
    assert joined == [["a", "b", "c"], ["e"]]
    assert [answer for (answer,) in answers] == [
        *(("written", text) for text in "abc"),
        ("run", "d"),
        ("written", "e"),
    ]


def test_a_batch_that_fails_is_answered_otherwise_unless_a_piece_was_told():
    def write(jobs: Any, more: Any) -> None:
        jobs[0].say("half a ")
        raise BundleError("a file is damaged.")

    async def scenario(batcher: Batcher) -> Any:
        pieces: list[str] = []
        streamed = batcher.submit(["t1"], ["a"], tell=pieces.append)
        found = await asyncio.gather(streamed, return_exceptions=True)
        return pieces, found, await batcher.submit(["t1"], ["b"])

    pieces, found, plain = batched(scenario, write)
    assert pieces == ["half a "] and isinstance(found[0], BundleError)
    assert plain == [("run", "b")]

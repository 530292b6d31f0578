"""Texts as OpenAI's clients ask for them, whole and in chunks: what ``:predict`` writes, in their form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from deltas import TEXTS
from served import Served, serving

WORDS = [text.first for text in TEXTS]
ROWS = [("lora-1", WORDS[5]), ("lora-0", WORDS[20]), ("full", WORDS[2])]


@pytest.fixture(scope="module")
def bundle(several_texts: Path) -> Path:
    return several_texts


@pytest.fixture(scope="module")
def service(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(bundle, tmp_path_factory.mktemp("openai"), "--no-cache") as running:
        yield running


def predicted(service: Served, task: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = service.predict(task, {"text": text})[2]["predictions"][0]
    return found


def chunks(content: bytes) -> list[dict[str, Any]]:
    *blocks, done = content.decode("ascii").removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize(("task", "text"), ROWS)
def test_a_chat_says_what_the_task_writes_whole_and_in_chunks(service: Served, task: str, text: str):
    expected = predicted(service, task, text)
    asked = {"model": task, "messages": [{"role": "user", "content": text}]}
    status, _, found = service.post("/v1/chat/completions", asked)
    (choice,) = found["choices"]
    assert (status, found["object"], found["model"]) == (200, "chat.completion", task)
    assert choice["message"] == {"role": "assistant", "content": expected["text"]}
    assert choice["finish_reason"] == ("stop" if expected["ended"] else "length")
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > usage["prompt_tokens"] > 2
    parts = [{"type": "text", "text": text[:4]}, {"type": "text", "text": text[4:]}]
    status, headers, content = service.post(
        "/v1/chat/completions", {**asked, "stream": True, "messages": [{"role": "user", "content": parts}]}
    )
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *said, last = chunks(content)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in said) == expected["text"]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    assert {chunk["object"] for chunk in said} <= {"chat.completion.chunk"} and len({c["id"] for c in said}) <= 1


def test_prompts_are_answered_in_order_and_no_longer_than_asked(service: Served):
    texts = [WORDS[20], WORDS[5], WORDS[20]]
    whole = [predicted(service, "lora-0", text)["text"] for text in texts]
    found = service.post("/v1/completions", {"model": "lora-0", "prompt": texts})[2]
    assert [choice["text"] for choice in found["choices"]] == whole and found["object"] == "text_completion"
    short = service.post("/v1/completions", {"model": "lora-0", "prompt": texts[0], "max_tokens": 3})[2]
    (choice,) = short["choices"]
    assert short["usage"]["completion_tokens"] == 3 and choice["finish_reason"] == "length"
    assert whole[0].startswith(choice["text"]) and choice["text"] != whole[0]
    streamed = service.post(
        "/v1/completions", {"model": "lora-0", "prompt": texts[0], "max_tokens": 3, "stream": True}
    )[2]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks(streamed)) == choice["text"]


USER = [{"role": "user", "content": "w5"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("chat/completions", {"model": "nobody", "messages": USER}, 404, "model_not_found", "model"),
        ("chat/completions", {"model": "mood", "messages": USER}, 400, "no_text", "model"),
        ("chat/completions", {"model": "lora-0", "messages": [*USER, *USER]}, 422, "invalid", "messages"),
        ("chat/completions", {"model": "lora-0", "messages": []}, 422, "invalid", "messages"),
        (
            "chat/completions",
            {"model": "lora-0", "messages": [{"role": "system", "content": "Be brief."}]},
            422,
            "invalid",
            "messages",
        ),
        (
            "chat/completions",
            {"model": "lora-0", "messages": USER, "temperature": 0.7},
            422,
            "invalid",
            "temperature",
        ),
        ("completions", {"model": "lora-0", "prompt": ["w5", "w6"], "stream": True}, 400, "invalid", "prompt"),
        ("completions", {"model": "lora-0", "prompt": []}, 422, "invalid", "prompt"),
        ("completions", {"model": "lora-0", "prompt": "w5", "max_tokens": 100_000}, 422, "invalid", "max_tokens"),
        ("completions", {"model": "lora-0", "prompt": "w5", "n": 2}, 422, "invalid", "n"),
    ],
)
def test_what_cannot_be_done_is_refused_in_openais_form(
    service: Served, path: str, body: dict[str, Any], status: int, code: str, param: str
):
    answer = service.post(f"/v1/{path}", body)
    fault = answer[2]["error"]
    assert (answer[0], fault["code"], fault["param"], fault["type"]) == (status, code, param, "invalid_request_error")
    assert fault["message"].startswith(param) or status == 404


def test_openais_own_client_reads_both_forms(service: Served):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none", max_retries=0)
    task, text = ROWS[1]
    expected = predicted(service, task, text)["text"]
    asked: dict[str, Any] = {"model": task, "messages": [{"role": "user", "content": text}]}
    assert client.chat.completions.create(**asked).choices[0].message.content == expected
    told = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == expected
    assert client.completions.create(model=task, prompt=text).choices[0].text == expected
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**asked, "model": "nobody"})

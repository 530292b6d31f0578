"""Answers in a JSON schema, as OpenAI's clients ask for them: ``response_format``, and a task's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
pytest.importorskip("llguidance", reason="needs pip install edgepeft[grammar]")

from served import Served, serving
from spelling import export_schemas, write_speller

OWN = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
ASKED = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("schemas")
    bundle = export_schemas(write_speller(folder / "model"), {"own": OWN, "free": None}, folder)
    with serving(bundle, folder, "--no-cache") as running:
        yield running


def asked(model: str, form: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if form is None else {"response_format": form}
    return {"model": model, "messages": [{"role": "user", "content": "two"}], **given, **more}


def of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def said(service: Served, body: Any) -> tuple[str, str]:
    status, _, found = service.post("/v1/chat/completions", body)
    assert status == 200, found
    return found["choices"][0]["message"]["content"], found["choices"][0]["finish_reason"]


def test_an_answer_keeps_to_the_schema_of_the_request_or_of_the_task(service: Served):
    text, reason = said(service, asked("free", of(ASKED)))
    assert reason == "stop" and 1 <= len(json.loads(text)) <= 2 and set(map(type, json.loads(text))) == {bool}
    for form in (None, {"type": "text"}, {"type": "json_object"}):
        assert json.loads(said(service, asked("own", form))[0]) in ({"n": 1}, {"n": 2})
    assert isinstance(json.loads(said(service, asked("own", of(ASKED)))[0]), list)
    text, reason = said(service, asked("free", {"type": "json_object"}, max_tokens=60))
    assert reason == "length" or isinstance(json.loads(text), dict)
    assert text.lstrip().startswith("{")
    plain = service.predict("own", {"text": "two"})[2]["predictions"][0]
    assert json.loads(plain["text"]) in ({"n": 1}, {"n": 2})


def test_a_cut_answer_says_that_it_is(service: Served):
    text, reason = said(service, asked("free", of(ASKED), max_tokens=3))
    assert reason == "length"
    with pytest.raises(ValueError):
        json.loads(text)


def test_requests_with_a_schema_and_without_are_answered_at_once(service: Served):
    from concurrent.futures import ThreadPoolExecutor

    bodies = [
        asked("free", of(ASKED)),
        asked("free", max_tokens=40),
        asked("own"),
        asked("free", of({"const": "a"})),
    ] * 3
    alone = [said(service, body) for body in bodies[:4]] * 3
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda body: said(service, body), bodies)) == alone
    assert json.loads(alone[3][0]) == "a"


@pytest.mark.parametrize(
    ("form", "status", "code", "message"),
    [
        (of({"enum": []}), 400, "invalid_schema", "Unsatisfiable schema"),
        (of({"type": "array", "uniqueItems": True}), 400, "invalid_schema", "uniqueItems"),
        (of({"title": "a" * 70_000}), 400, "invalid_schema", "at most 65,536"),
        ({"type": "json_schema"}, 422, "invalid", "json_schema is given"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": {}}}, 422, "invalid", "json_schema is given"),
        ({"type": "xml"}, 422, "invalid", "response_format"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_kept_is_refused(service: Served, form: Any, status: int, code: str, message: str):
    answer = service.post("/v1/chat/completions", asked("free", form))
    fault = answer[2]["error"]
    assert (answer[0], fault["code"], fault["type"]) == (status, code, "invalid_request_error")
    assert message in fault["message"] and fault["param"] == "response_format"


def test_openais_own_client_gets_an_object_of_its_class(service: Served):
    openai = pytest.importorskip("openai")
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "two"}]
    found = client.chat.completions.parse(model="free", messages=messages, response_format=Answer)
    assert isinstance(found.choices[0].message.parsed, Answer)
    told = client.chat.completions.create(model="free", messages=messages, response_format=of(ASKED), stream=True)
    assert isinstance(json.loads("".join(chunk.choices[0].delta.content or "" for chunk in told)), list)

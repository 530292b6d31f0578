"""What the guard and the routes bound before anything is built from a request; and what the log shows of it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from edgepeft.common.messages import listed_mistakes
from edgepeft.serve import routes
from edgepeft.serve.guard import BODY, Guard, parsed_body
from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.openai import EmbeddingsRequest
from edgepeft.serve.problems import Refused, refusal_of
from edgepeft.serve.schemas import MixedRequest, PredictRequest, TuneRequest
from edgepeft.serve.server import PrintableFormatter
from edgepeft.serve.settings import ServiceLimits, Settings


class Unread:
    """A model that must not be reached."""

    @staticmethod
    def model_validate_json(content):
        raise AssertionError("the body was validated")


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows":[' + b",".join([b"0"] * 524_000) + b"]}",
        b'{"rows":[' + b",".join([b'""'] * 300_000) + b"]}",
        b'{"rows":[' + b",".join([b"{}"] * 300_000) + b"]}",
        b"[" * 1_000_000,
        b"{" + b",".join(b'"a%d":0' % i for i in range(90_000)) + b"}",
        b'{"rows":[' + b",".join([b"9" * 4299] * 240) + b"]}",
    ],
    ids=["zeros", "texts", "objects", "brackets", "keys", "digits"],
)
def test_a_body_of_more_parts_than_its_rows_need_is_refused_before_it_is_validated(body):
    with pytest.raises(Refused) as refused:
        parsed_body(body, Unread, 64)
    assert (refused.value.status, refused.value.code) == (413, "too_many_rows")


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (TuneRequest, {"rows": [{"text": "a", "label": [{}] * 20_000}]}),
        (TuneRequest, {"rows": [{"text": "a", "label": {"text": [0] * 20_000, "answer_start": ["a"] * 20_000}}]}),
        (TuneRequest, {"rows": [{}] * 20_000}),
        (MixedRequest, {"rows": [{}] * 20_000}),
        (PredictRequest, {"rows": [{}] * 20_000}),
        (PredictRequest, {"text": "a", "candidates": [1] * 20_000}),
        (PredictRequest, {"words": [1] * 20_000}),
        (PredictRequest, {"fields": {str(i): {} for i in range(20_000)}}),
        (PredictRequest, {"fields": {"a": [{}] * 20_000}}),
        (EmbeddingsRequest, {"model": "a", "input": [0] * 20_000}),
    ],
)
def test_a_body_is_refused_at_its_first_mistakes(model, body):
    with pytest.raises(ValidationError) as refused:
        model.model_validate_json(json.dumps(body))
    assert refused.value.error_count() <= 20


@pytest.mark.parametrize(
    "label",
    [
        [{}] * 6000,
        {str(i): 0 for i in range(6000)},
        [{str(i): 0 for i in range(6000)}],
        {"text": ["a"] * 3000, "answer_start": [0] * 3000},
        [{"start": 0, "end": 1, "label": "a"}] * 2000,
    ],
    ids=["objects", "keys", "keys of a span", "answers", "spans"],
)
def test_the_parts_of_a_label_are_counted_before_it_is_read(label):
    with pytest.raises(ValidationError, match="5,000 names, spans and fields at most") as refused:
        TuneRequest.model_validate_json(json.dumps({"rows": [{"text": "a", "label": label}]}))
    assert refused.value.error_count() == 1


def test_labels_of_every_kind_are_read_as_they_are():
    labels = [
        "a",
        1,
        1.5,
        ["a", "b"],
        [{"start": 0, "end": 1, "label": "a"}] * 1000,
        {"text": ["a"], "answer_start": [0]},
    ]
    rows = [{"text": "a", "label": label} for label in labels]
    asked = TuneRequest.model_validate_json(json.dumps({"rows": rows}))
    assert [row.in_file["label"] for row in asked.rows] == labels


def test_thousands_of_mistakes_are_counted_and_not_listed():
    body = json.dumps({"text": "a", **{f"a{i}": 0 for i in range(3000)}})
    with pytest.raises(ValidationError) as refused:
        PredictRequest.model_validate_json(body)
    assert listed_mistakes(refused.value) == []
    answer = refusal_of(refused.value)
    assert (answer.status, answer.message.partition(";")[0]) == (422, "the body has 3,000 mistakes")


def test_rows_to_learn_from_are_checked_beside_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setattr(routes, "check_taught", lambda *_: threads.append(threading.current_thread()))

    async def asked():
        jobs = SimpleNamespace(start=lambda *_: {})
        manifest = SimpleNamespace(task=lambda _: None)
        settings = Settings(bundle="bundle", allow_tuning=True)
        serving = routes.Serving(settings, SimpleNamespace(manifest=manifest), None, None, jobs)
        body = json.dumps({"rows": [{"text": "a", "label": "b"}]}).encode()
        scope = {
            "type": "http",
            "headers": [(b"content-type", b"application/json")],
            "path_params": {"task": "mood"},
            "app": SimpleNamespace(state=SimpleNamespace(serving=serving)),
            BODY: body,
        }
        return await routes.start_tuning(Request(scope))

    assert asyncio.run(asked()).status_code == 202
    assert threads and threads[0] is not threading.main_thread()


def test_punctuation_in_texts_is_text():
    text = '[{",\\"\n' * 1000
    rows = [{"text": text, "second": text, "task": "mood"}] * 64
    asked = parsed_body(json.dumps({"rows": rows}, indent=1).encode(), MixedRequest, 64)
    assert [row.text for row in asked.rows] == [text] * 64
    assert parsed_body(json.dumps({"text": text}).encode(), PredictRequest, 64).text == text


def guarded(limits, *requests):
    """The statuses of requests (path, headers, body) that are all under way at once."""

    async def main():
        going_on = asyncio.Event()

        async def app(scope, receive, send):
            await going_on.wait()
            await Response()(scope, receive, send)

        guard = Guard(app, SimpleNamespace(limits=limits, loopback=False, token=None), ServiceMetrics(), [])

        async def ask(path, headers, body):
            statuses = []

            async def receive():
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message):
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
            await guard({**scope, "headers": [(b"host", b"localhost"), *headers]}, receive, send)
            return statuses

        asked = [asyncio.create_task(ask(*request)) for request in requests]
        await asyncio.sleep(0)
        going_on.set()
        return [status for (status,) in await asyncio.gather(*asked)], guard

    return asyncio.run(main())


def test_requests_beyond_the_limit_are_refused_and_health_checks_are_not():
    statuses, _ = guarded(
        ServiceLimits(connections=2),
        *[("/v1/predict", [], b"{}")] * 3,
        ("/healthz", [], b""),
        ("/readyz", [], b""),
    )
    assert statuses == [200, 200, 503, 200, 200]


def test_large_bodies_share_a_bound_that_small_ones_do_not_need():
    large = ("/v1/predict", [(b"content-length", b"1000000")], b"x" * 1_000_000)
    chunked = ("/v1/predict", [(b"transfer-encoding", b"chunked")], b"{}")
    small = ("/v1/predict", [(b"content-length", b"2")], b"{}")
    statuses, guard = guarded(ServiceLimits(bodies=2), large, chunked, large, chunked, small)
    assert statuses == [200, 503, 503, 503, 200] or statuses == [200, 200, 503, 503, 200]
    assert guard._held_bytes == 0


def test_a_client_that_leaves_within_its_body_is_not_answered():
    async def main():
        async def app(*_):
            raise AssertionError("half a body was handed on")

        async def receive():
            return {"type": "http.disconnect"}

        async def send(_):
            raise AssertionError("something was sent")

        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [(b"host", b"localhost")]}
        await Guard(app, Settings(bundle="bundle"), ServiceMetrics(), [])(scope, receive, send)

    asyncio.run(main())


def test_a_log_line_is_one_line_of_printable_text():
    formatter = PrintableFormatter("%(levelname)s %(message)s")
    name = "mood\nINFO ready\x1b[2J\u202e"
    record = logging.LogRecord("x", logging.ERROR, "", 0, "task %s", (name,), None)
    assert formatter.format(record) == r"ERROR task mood\nINFO ready\x1b[2J\u202e"
    try:
        raise ValueError("a\nINFO ready\x1b[2J")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    lines = formatter.format(record).splitlines()
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(line.isprintable() for line in lines)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "9" * 5_000_000, (), None)
    assert len(formatter.format(record)) < 5000

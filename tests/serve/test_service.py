"""``edgepeft serve`` over loopback: answers are the runtime's, and nothing a client sends does harm."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from served import Served
from verbs import edgepeft, process

from edgepeft.device.machine import thread_count
from edgepeft.runtime.runtime import Runtime

TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14", "w20 w21"]


@pytest.fixture(scope="module")
def offline(exported):
    with Runtime(exported, cache=False) as runtime:
        yield runtime


def assert_same(found, expected):
    """Rows of other requests ran beside it: the last digits may differ."""
    assert found["task"] == expected.task
    if expected.label is None:
        assert found["value"] == pytest.approx(expected.score, abs=1e-4)
    else:
        assert found["label"] == expected.label
        assert found["scores"] == pytest.approx(expected.scores, abs=1e-4)


def code(answer):
    status, _, document = answer
    return status, document["error"]["code"]


def test_a_list_of_texts_has_the_runtimes_answers_in_order(served, offline):
    status, _, document = served.predict("mood", {"rows": TEXTS})
    assert status == 200
    for found, expected in zip(document["predictions"], offline.predict("mood", TEXTS), strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("body", [{"text": "w5 w6", "second": "w9"}, {"rows": [{"text": "w5 w6", "second": "w9"}]}])
def test_a_pair_is_read_as_a_pair(served, offline, body):
    _, _, document = served.predict("pair", body)
    (expected,) = offline.predict("pair", [("w5 w6", "w9")])
    assert_same(document["predictions"][0], expected)
    (other,) = offline.predict("pair", ["w5 w6 w9"])
    assert expected.scores != pytest.approx(other.scores, abs=1e-4)


def test_rows_of_several_tasks_and_of_none_are_answered_each_by_its_own(served, offline):
    rows = [
        {"text": "w5", "task": "mood"},
        {"text": "w5", "task": "score"},
        {"text": "w5"},
        {"text": "w5", "task": "moot"},
        {"text": "w5", "second": "w6", "task": "pair"},
        "w5",  # as `:predict` takes it
    ]
    status, _, document = served.post("/v1/predict", {"rows": rows})
    mood, score, embedded, unknown, pair, text = document["answers"]
    assert status == 200
    assert_same(mood["prediction"], offline.predict("mood", ["w5"])[0])
    assert_same(score["prediction"], offline.predict("score", ["w5"])[0])
    assert_same(pair["prediction"], offline.predict("pair", [("w5", "w6")])[0])
    assert embedded["embedding"] == pytest.approx(offline.predict_mixed([None], ["w5"])[0].tolist(), abs=1e-4)
    assert unknown["error"]["code"] == "unknown_task"
    assert text["embedding"] == pytest.approx(embedded["embedding"], abs=1e-4)


@pytest.mark.parametrize("name", ["", "my task", "../../etc/passwd", "mood\n", "m" * 101])
def test_a_name_that_no_task_can_have_is_an_error_of_its_row(served, offline, name):
    status, _, document = served.post(
        "/v1/predict", {"rows": [{"text": "w5", "task": each} for each in ("mood", name)]}
    )
    mood, unknown = document["answers"]
    assert (status, unknown["error"]["code"]) == (200, "unknown_task")
    assert_same(mood["prediction"], offline.predict("mood", ["w5"])[0])


@pytest.fixture(scope="module")
def two_cores():
    """``serve --workers 2`` refuses a host, or a limit, of one core."""
    if thread_count() < 2:
        pytest.skip("two batches at once need two cores")


@pytest.fixture(scope="module")
def by_two(two_cores, exported, tmp_path_factory):
    """A service that runs two batches at once."""
    from served import serving

    with serving(exported, tmp_path_factory.mktemp("by_two"), "--no-cache", "--workers", "2") as found:
        yield found


@pytest.mark.parametrize("service", ["served", "by_two"])
def test_clients_at_once_get_each_their_own_answers(request, service, offline):
    served = request.getfixturevalue(service)
    rng = __import__("random").Random(0)
    asked = [(task, " ".join(f"w{rng.randrange(5, 60)}" for _ in range(rng.randrange(1, 12)))) for task in ("mood", "score", "pair") for _ in range(40)]  # fmt: skip
    found = {}

    def client(part):
        for task, text in part:
            found[task, text] = served.predict(task, {"text": text})

    threads = [threading.Thread(target=client, args=(asked[i::12],)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task, text in asked:
        status, _, document = found[task, text]
        assert status == 200
        assert_same(document["predictions"][0], offline.predict(task, [text])[0])


def test_columns_are_read_by_name(served, offline):
    document = served.post("/v1/tasks/pair:predict", {"fields": {"sentence1": "w5", "sentence2": "w6", "id": 7}})[2]
    assert_same(document["predictions"][0], offline.predict("pair", [("w5", "w6")])[0])


def test_the_list_of_tasks_says_labels_and_no_path(served, exported):
    _, _, document = served.get("/v1/tasks")
    by_name = {task["name"]: task for task in document["tasks"]}
    assert set(by_name) == {"mood", "pair", "score"}
    assert by_name["pair"]["labels"] == ["a", "b", "c"]
    assert by_name["pair"]["pairs"] is True
    assert by_name["score"]["labels"] is None
    assert str(exported) not in json.dumps(document)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/tasks/moot:predict", {"text": "w5"}, (404, "unknown_task")),
        ("/v1/tasks/..%2f..%2fetc:predict", {"text": "w5"}, (404, "not_found")),
        ("/v1/tasks/mood:predict", b"{", (400, "not_json")),
        ("/v1/tasks/mood:predict", b"\xff\xfe", (400, "not_json")),
        ("/v1/tasks/mood:predict", b"[" * 300, (400, "not_json")),
        ("/v1/tasks/mood:predict", b"[" * 100_000, (413, "too_many_rows")),
        ("/v1/tasks/mood:predict", {}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"text": 5}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"text": "w5", "rows": ["w5"]}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"rows": []}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"texts": ["w5"]}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"text": "w5", "fields": {"sentence1": "w5"}}, (422, "invalid")),
        ("/v1/tasks/mood:predict", {"fields": {"note": "w5"}}, (422, "unreadable_row")),
        ("/v1/tasks/mood:predict", {"fields": {"sentence1": "w" * 20_001}}, (413, "text_too_long")),
        ("/v1/tasks/mood:predict", {"rows": ["w5"] * 65}, (413, "too_many_rows")),
        ("/v1/tasks/mood:predict", {"text": "w" * 20_001}, (413, "text_too_long")),
        ("/v1/tasks/mood:predict", {"text": "w" * 1_100_000}, (413, "too_large")),
        ("/v1/tasks/mood:tune", {"rows": [{"text": "w5", "label": "a"}]}, (403, "tuning_is_off")),
        ("/v2/predict", {}, (404, "not_found")),
    ],
)
def test_a_wrong_request_is_refused_by_what_is_wrong_with_it(served, path, body, expected):
    assert code(served.post(path, body)) == expected


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/tasks/mood:predict", b"{", "the body is not JSON (line 1 column 1)."),
        ("/v1/tasks/mood:predict", b" \n", "the body is empty; send JSON."),
        ("/v1/tasks/mood:predict", b'{"text": "caf\xe9"}', "the body is not JSON, which is UTF-8 (byte 13)."),
        ("/v1/tasks/mood:predict", {"text": 5}, "text must be text, found a number;"),
        (
            "/v1/tasks/mood:predict",
            {},
            "the body: give text (and second for a pair, or candidates), or words, or fields, or rows;",
        ),
        ("/v1/tasks/mood:predict", {"rows": []}, "rows must be a list of 1 or more, found a list of 0;"),
        ("/v1/tasks/mood:predict", {"rows": [{"texts": "secret"}]}, "rows.0.texts is not a key that is known;"),
        ("/v1/predict", {"rows": [{"text": "w5", "label": "secret"}]}, "rows.0.label is not a key that is known;"),
        ("/v1/predict", {"rows": [5]}, "rows.0 must be an object or text, found a number;"),
        ("/v1/predict", ["secret"], "the body must be an object, found a list of 1;"),
    ],
)
def test_what_is_wrong_with_a_body_is_told_by_place_need_and_kind_and_no_value_is_repeated(served, path, body, words):
    told = served.post(path, body)[2]["error"]["message"]
    assert told.startswith(words)
    assert "secret" not in told


SLOW = """
import sys, time
from pathlib import Path
from edgepeft.serve.service import Service
warm = Service.warm
def wait(self, task):
    while not Path(sys.argv[2], "go").exists():
        time.sleep(0.02)
    warm(self, task)
Service.warm = wait
from edgepeft.cli._main import main
main()
"""


def test_it_says_that_it_serves_when_its_tasks_are_open(bundle, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    command = [sys.executable, "-c", SLOW, "serve", str(bundle), "--port", str(port), "--no-cache"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        own = Served(process, log, port, None)
        try:
            own.wait_for(lambda: health(own) == "starting", 60)
            assert f"opening the tasks of {bundle}" in own.log
            assert "serving" not in own.log.replace(str(bundle), "")
            (bundle / "go").touch()
            own.wait_for(lambda: f"serving {bundle} on http://127.0.0.1:{port}\n" in own.log, 60)
            assert own.predict("mood", {"text": "w5"})[0] == 200
        finally:
            process.kill()


def health(own):
    with contextlib.suppress(OSError):
        return own.get("/readyz")[2]["status"]


def test_an_unknown_task_is_met_with_the_nearest_known_one(served):
    _, _, document = served.predict("moot", {"text": "w5"})
    assert "'mood'" in document["error"]["message"]


@pytest.mark.parametrize("text", ["", " ", "\x00", "\u202e w5", "w5 " * 5000, "🙂" * 1000])
def test_hostile_texts_have_an_answer(served, text):
    status, _, document = served.predict("mood", {"text": text})
    assert status == 200
    assert document["predictions"][0]["label"] is not None


def test_a_lone_surrogate_which_no_text_can_hold_is_refused(served):
    for body in (b'{"rows":[{"text":"w5","task":"\\ud800"}]}', b'{"rows":[{"text":"\\ud800"}]}'):
        assert code(served.post("/v1/predict", body)) == (400, "not_json")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("PUT", "/v1/jobs/x", {"GET", "HEAD", "DELETE"}),
        ("GET", "/v1/predict", {"POST"}),
    ],
)
def test_another_method_is_refused_with_those_that_there_are(served, method, path, allowed):
    status, headers, _ = served.ask(method, path)
    assert status == 405
    found = next(value for name, value in dict(headers).items() if name.lower() == "allow")
    assert set(found.split(", ")) == allowed


def test_a_slash_behind_a_path_changes_nothing(served):
    assert served.get("/v1/tasks/")[::2] == served.get("/v1/tasks")[::2]
    assert served.post("/v1/tasks/mood:predict/", {"text": "w5"})[0] == 200
    assert served.get("/healthz/")[::2] == served.get("/healthz")[::2]
    assert 'route="/v1/tasks/"' not in str(served.get("/metrics")[2])


def test_a_request_that_the_schema_allows_is_one_that_is_answered(served):
    schema = served.get("/openapi.json")[2]["components"]["schemas"]["PredictRequest"]
    for body in ({"text": "w5"}, {"text": "w5", "rows": None}, {"rows": ["w5"], "text": None}):
        assert sum(_allows(rule, body) for rule in schema["oneOf"]) == 1
        assert served.predict("mood", body)[0] == 200
    for body in ({}, {"text": None}, {"text": "w5", "rows": ["w5"]}, {"rows": ["w5"], "second": "w6"}):
        assert sum(_allows(rule, body) for rule in schema["oneOf"]) != 1
        assert code(served.predict("mood", body)) == (422, "invalid")


def _allows(rule, body):
    kinds = {"string": str, "array": list, "null": type(None)}
    right = all(isinstance(body[n], kinds[p["type"]]) for n, p in rule["properties"].items() if n in body)
    return right and all(name in body for name in rule["required"])


def test_only_json_is_read_so_that_no_foreign_page_can_post(served):
    answer = served.predict("mood", b'{"text":"w5"}', headers={"Content-Type": "text/plain"})
    assert code(answer) == (415, "not_json")


def test_a_compressed_body_is_refused_as_such(served):
    body = gzip.compress(b'{"text":"w5"}')
    answer = served.predict("mood", body, headers={"Content-Encoding": "gzip"})
    assert code(answer) == (415, "not_json")
    assert "gzip" in answer[2]["error"]["message"]
    assert served.predict("mood", b'{"text":"w5"}', headers={"Content-Encoding": "Identity"})[0] == 200


def test_a_byte_order_mark_before_a_body_is_no_part_of_it(served):
    assert served.predict("mood", b'\xef\xbb\xbf{"text":"w5"}')[2] == served.predict("mood", {"text": "w5"})[2]


@pytest.mark.parametrize("offer", ["Upgrade: h2c", "upgrade: HTTP/2.0"])
def test_a_body_behind_an_offer_of_http_2_is_read(served, offer):
    """As Java's client and curl --http2 send it."""
    body = b'{"text":"w5"}'
    head = f"POST /v1/tasks/mood:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{offer}\r\n"
    more = (
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 13\r\n\r\n"
    )
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(served.port, head.encode() + more + body + last)
    assert answer.startswith(b"HTTP/1.1 200 OK") and b'"predictions"' in answer and b'{"status":"ok"}' in answer


def test_a_foreign_name_for_loopback_is_refused(served):
    assert code(served.get("/v1/tasks", headers={"Host": "evil.example"})) == (403, "wrong_host")
    assert served.get("/v1/tasks", headers={"Host": "127.0.0.1.evil.example"})[0] == 403
    for name in ("localhost", "127.0.0.2", "[::1]"):
        assert served.get("/v1/tasks", headers={"Host": f"{name}:{served.port}"})[0] == 200


def test_a_client_that_hangs_up_after_each_answer_is_not_waited_for(exported, tmp_path):
    from served import serving

    with serving(exported, tmp_path, "--no-cache", "--max-wait-ms", "1000") as own:
        begin = time.monotonic()
        for _ in range(8):
            assert own.predict("mood", {"text": "w5"})[0] == 200
        assert time.monotonic() - begin < 3


def test_a_failure_of_ours_is_500_with_the_headers_of_every_answer(exported):
    import asyncio

    from edgepeft.serve.app import create_app
    from edgepeft.serve.settings import Settings

    app = create_app(Settings(bundle=exported, no_cache=True, no_watch=True))
    app.state.serving.service = None
    sent = []

    async def ask(path):
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)

    asyncio.run(ask("/healthz"))
    sound = {name for name, _ in sent[0]["headers"]}
    sent.clear()
    with pytest.raises(AttributeError):
        asyncio.run(ask("/v1/tasks"))
    assert sent[0]["status"] == 500
    assert sound <= {name for name, _ in sent[0]["headers"]}
    assert b"AttributeError" not in sent[1]["body"]


def test_a_deadline_that_cannot_be_met_is_504_and_a_wrong_one_400(served):
    assert served.predict("mood", {"text": "w5"}, headers={"X-Deadline-Ms": "30000"})[0] == 200
    assert code(served.predict("mood", {"text": "w5"}, headers={"X-Deadline-Ms": "soon"})) == (400, "invalid")


def raw(port, content, wait=5.0):
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(content)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return found


def test_headers_without_end_are_cut_off(served):
    head = b"GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\n"
    assert raw(served.port, head + b"X-Long: " + b"a" * 20_000).startswith(b"HTTP/1.1 431")
    many = b"".join(b"X-%d: a\r\n" % i for i in range(3000))
    assert raw(served.port, head + many + b"\r\n").startswith(b"HTTP/1.1 431")


def test_what_is_no_http_is_a_400_and_the_service_goes_on(served):
    assert raw(served.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").startswith(b"HTTP/1.1 400")
    assert served.get("/healthz")[0] == 200


def test_answers_tell_nothing_of_the_server(served, exported):
    for answer in (served.get("/v1/tasks"), served.get("/nothing"), served.predict("moot", {"text": "w5"})):
        told = json.dumps([answer[1], answer[2]]).lower()
        for secret in ("uvicorn", "starlette", "python", "onnxruntime", "traceback", str(exported).lower()):
            assert secret not in told
        assert answer[1]["X-Content-Type-Options".lower()] == "nosniff"


def test_metrics_count_rows_and_refusals_and_tell_no_version(served):
    before = rows_of("mood", served)
    served.predict("mood", {"rows": ["w5", "w6", "w7"]})
    assert rows_of("mood", served) == before + 3
    text = served.get("/metrics")[2].decode()
    assert 'edgepeft_requests_total{route="/v1/tasks/{task}:predict",status="200"}' in text
    assert "python_info" not in text


def rows_of(task, served):
    lines = served.get("/metrics")[2].decode().splitlines()
    found = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f'edgepeft_rows_total{{task="{task}"}}')]
    return float(found[0]) if found else 0.0


def test_the_status_says_throughput_latency_and_memory(served):
    served.predict("mood", {"text": "w5"})
    _, _, document = served.get("/v1/status")
    assert document["ready"] is True
    assert document["rows"] > 0
    assert document["latency_p50_ms"] > 0
    assert 10 << 20 < document["memory_bytes"] < 4 << 30


def test_the_openapi_document_names_every_route_and_resolves_every_reference(served):
    _, _, document = served.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    assert {"/v1/tasks", "/v1/tasks/{task}:predict", "/v1/predict", "/v1/tasks/{task}:tune", "/healthz"} <= set(
        document["paths"]
    )
    text = json.dumps(document)
    for name in set(__import__("re").findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in document["components"]["schemas"]


@pytest.mark.parametrize("path", ["/", "/docs", "/static/page.js", "/static/docs.js"])
def test_pages_name_what_they_ask_for_from_where_they_stand_which_a_proxy_may_have_moved(served, path):
    content = served.get(path)[2].decode()
    assert not __import__("re").findall(r"""(?:src=|href=|fetch\(|call\()["'`]/""", content)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_ask_no_other_host(served, path):
    status, headers, content = served.get(path)
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    names = __import__("re").findall(r'(?:src|href)="(static/[^"]+)"', content.decode())
    files = {path: content} | {name: served.get(f"/{name}")[2] for name in names}
    assert len(files) > 1
    for name, found in files.items():
        links = set(__import__("re").findall(rb"(?:https?:)?//[a-z][\w.-]+", found)) - {b"http://www.w3.org"}
        assert not [link for link in links if b"." in link.split(b"//")[1]], name


def test_sigterm_answers_what_is_under_way_and_exits_with_0(exported, tmp_path):
    from served import serving

    with serving(exported, tmp_path, "--no-cache") as own:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(own.predict("mood", {"rows": ["w5 " * 60] * 64})[0]))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        own.wait_for(lambda: b"edgepeft_batch_rows_count 0" not in own.get("/metrics")[2])
        assert own.stop() == 0
        for thread in threads:
            thread.join()
        assert found == [200] * 3
        assert "Traceback" not in own.log


def test_a_task_that_comes_and_one_that_goes_are_served_without_a_restart(bundle, exported, tmp_path):
    from served import serving

    with serving(bundle, tmp_path, "--no-cache") as own:
        edgepeft("remove", bundle, "mood")
        own.wait_for(lambda: own.predict("mood", {"text": "w5"})[0] == 404)
        assert own.predict("score", {"text": "w5"})[0] == 200
        edgepeft("add", bundle, exported / "tasks" / "mood.onnx")
        own.wait_for(lambda: own.predict("mood", {"text": "w5"})[0] == 200)


@pytest.mark.usefixtures("two_cores")
def test_no_answer_of_two_batches_at_once_is_lost_while_tasks_come_and_go(bundle, exported, tmp_path, offline):
    from served import serving

    found, over = [], threading.Event()

    def client(own, task):
        while not over.is_set():
            found.append((task, own.predict(task, {"text": "w5 w6"})))

    with serving(bundle, tmp_path, "--no-cache", "--workers", "2") as own:
        clients = [threading.Thread(target=client, args=(own, task)) for task in ("mood", "score") * 4]
        for each in clients:
            each.start()
        try:
            for _ in range(3):
                edgepeft("remove", bundle, "mood")
                own.wait_for(lambda: own.predict("mood", {"text": "w5"})[0] == 404)
                edgepeft("add", bundle, exported / "tasks" / "mood.onnx")
                own.wait_for(lambda: own.predict("mood", {"text": "w5"})[0] == 200)
        finally:
            over.set()
            for each in clients:
                each.join()
        assert own.stop() == 0
    expected = {task: offline.predict(task, ["w5 w6"])[0] for task in ("mood", "score")}
    assert {(task, status) for task, (status, _, _) in found} == {("mood", 200), ("mood", 404), ("score", 200)}
    for task, (status, _, document) in found:
        if status == 200:
            assert_same(document["predictions"][0], expected[task])


def test_a_bundle_that_becomes_unreadable_goes_on_being_served_and_sighup_takes_over_the_repaired_one(bundle, tmp_path):
    import signal

    from served import serving

    with serving(bundle, tmp_path, "--no-cache", "--no-watch") as own:
        manifest = (bundle / "edgepeft.json").read_bytes()
        (bundle / "edgepeft.json").write_text("{")
        own.process.send_signal(signal.SIGHUP)
        own.wait_for(lambda: "was not read again" in own.log)
        assert own.predict("mood", {"text": "w5"})[0] == 200
        (bundle / "edgepeft.json").write_bytes(manifest)
        own.process.send_signal(signal.SIGHUP)
        own.wait_for(lambda: "read again; changed: nothing" in own.log)


def test_a_damaged_task_is_503_without_its_path_and_the_others_are_answered(bundle, tmp_path):
    from served import serving

    path = bundle / "tasks" / "mood.onnx"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with serving(bundle, tmp_path, "--no-cache") as own:
        status, _, document = own.predict("mood", {"text": "w5"})
        assert (status, document["error"]["code"]) == (503, "task_unavailable")
        assert str(bundle) not in json.dumps(document)
        assert own.predict("score", {"text": "w5"})[0] == 200
        assert "mood.onnx" in own.log


def test_a_token_is_asked_for_by_everything_but_the_page_and_the_health_checks(exported, tmp_path):
    from served import serving

    token = "0123456789abcdef0123"
    (tmp_path / "token").write_text(token + "\n")
    with serving(exported, tmp_path, "--no-cache", "--token-file", tmp_path / "token") as own:
        for path in ("/v1/tasks", "/metrics", "/openapi.json", "/v1/status", "/nothing"):
            assert own.get(path)[0] == 401, path
        for header in ("Bearer", "Bearer ", f"Basic {token}", f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer é"):
            assert own.get("/v1/tasks", headers={"Authorization": header})[0] == 401, header
        for path in ("/", "/docs", "/healthz", "/readyz", "/static/page.js"):
            assert own.get(path)[0] == 200, path
        assert own.get("/v1/tasks", headers={"Authorization": f"bearer {token}"})[0] == 200


def refused(*arguments):
    """What `serve` says, which fails where it would begin to serve: it would not end."""
    with mock.patch("edgepeft.serve.server._Server", side_effect=AssertionError("it serves")):
        return edgepeft("serve", *arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--host", "::"], "--token-file"),
        (["--host", "example.invalid"], "--token-file"),
        (["--host", "192.0.2.1", "--insecure"], "192.0.2.1"),
        (["--port", "70000"], "65535"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--max-rows", "300"], "queue"),
        (["--threads", "1", "--workers", "2"], "--workers 2 need a thread each; there are 1"),
        (["--require-signature", "nowhere"], "nowhere"),
        (["--allow-tuning", "--require-signature", "key.pub"], "one of the two"),
    ],
)
def test_wrong_options_are_usage_errors(exported, options, said):
    done = refused(exported, *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_short_token_is_refused_with_the_command_that_makes_one(exported, tmp_path):
    (tmp_path / "token").write_text("secret")
    done = refused(exported, "--token-file", tmp_path / "token")
    assert done.returncode == 2
    assert "openssl rand" in done.stderr


def test_a_port_in_use_and_a_folder_that_is_no_bundle_are_usage_errors(exported, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = process("serve", exported, "--port", taken.getsockname()[1])
    assert (done.returncode, "--port" in done.stderr) == (2, True)
    assert refused(tmp_path).returncode == 2

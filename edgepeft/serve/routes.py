"""What the service answers: a function for each route, which ``ROUTES`` lists."""

import asyncio
import logging
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import psutil
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.task_name import check_task_name
from edgepeft.data.pattern import pattern
from edgepeft.runtime.inputs import Readable
from edgepeft.runtime.prediction import RowResult
from edgepeft.serve import schemas
from edgepeft.serve.batcher import Batcher, Tell
from edgepeft.serve.guard import AUTHORIZED, BODY, check_taught, check_texts, deadline_of, parsed_body, while_there
from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.problems import KEYS, Json, Refused, fault, refusal_of
from edgepeft.serve.service import Service
from edgepeft.serve.settings import Settings
from edgepeft.serve.tuning import Jobs
from edgepeft.tasks._answers import Answer

log = logging.getLogger("edgepeft.serve")

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

_AT_ONCE = 64 << 10  # bytes of a body that the event loop can read, in a millisecond
_MAX_PAUSE_S = 0.1
_TRIAL_S, _POLL_S = 5.0, 0.05
FEW_ROWS = 4  # whose embeddings the event loop can write, in a millisecond
EVENTS = "text/event-stream"


@dataclass
class Serving:
    """What the routes work on, as ``request.app.state.serving``."""

    settings: Settings
    service: Service
    batcher: Batcher
    metrics: ServiceMetrics
    jobs: Jobs
    state: str = "starting"  # or ok, or stopping
    started: asyncio.Event = field(default_factory=asyncio.Event)  # the first tasks are open
    unavailable: set[str] = field(default_factory=set)  # tasks that cannot be opened, or not yet; the log says why
    opened: set[str] = field(default_factory=set)
    opening: asyncio.Task[None] | None = None
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def aside(self, call: Callable[..., T], *arguments: Any, small: bool = False) -> T:
        """Run ``call``, in a thread unless it is ``small``, of a millisecond; one at a time, half of the time at most.

        The libraries that read a body keep the interpreter to themselves meanwhile, and health checks need it too.
        """
        if small:
            return call(*arguments)
        async with self.alone:
            begin = monotonic()
            try:
                return await asyncio.to_thread(call, *arguments)
            finally:
                await asyncio.sleep(min(monotonic() - begin, _MAX_PAUSE_S))


Call = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """A route with what its documentation says: the models of its request and answer."""

    method: str
    path: str
    call: Call
    answer: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    refusals: tuple[int, ...] = ()
    kind: str = "text/plain"  # of an answer that is no JSON

    def __post_init__(self) -> None:
        if self.body is not None:
            schema = self.body.model_json_schema()
            for part in (schema, *schema.get("$defs", {}).values()):
                KEYS.update(part.get("properties", ()))


ASKED = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
# In order: what carries a literal ':' stands before what `{task}` alone would match.
ROUTES: list[Endpoint] = []


def endpoint(table: list[Endpoint], method: str, path: str, *models: Any, **more: Any) -> Callable[[Call], Call]:
    """Enter a function into a table of routes, with the models of answer and request; its docstring is its summary."""

    def entered(call: Call) -> Call:
        table.append(Endpoint(method, path, call, *models, **more))
        return call

    return entered


def serving_of(request: Request) -> Serving:
    """What the routes work on."""
    serving: Serving = request.app.state.serving
    return serving


async def body_of(request: Request, model: type[Body], most_rows: int) -> Body:
    """Parse what was asked, in a thread where it is long; other types a page of another site could send unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "not_json", "send Content-Type: application/json.")
    if (coding := request.headers.get("content-encoding", "")).strip().lower() not in ("", "identity"):
        raise Refused(415, "not_json", f"Content-Encoding {coding} is not read; send the JSON as it is.")
    content = request.scope[BODY].removeprefix(BOM_UTF8)  # as Windows' programs write it
    return await serving_of(request).aside(parsed_body, content, model, most_rows, small=len(content) <= _AT_ONCE)


@endpoint(ROUTES, "GET", "/v1/tasks", schemas.Tasks)
async def tasks(request: Request) -> Response:
    """All tasks."""
    serving, manifest = serving_of(request), serving_of(request).service.manifest
    listed = [
        {
            "name": name,
            "method": entry.method,
            "kind": entry.task_kind.name,
            "labels": entry.labels,
            "writes": entry.task_kind.writes,
            "pairs": entry.pairs,
            "candidates": entry.task_kind.picks,
            "dims": entry.n_outputs if entry.task_kind.gives_vectors else None,
            "fields": pattern(entry.source).fields if entry.source else None,
            "max_length": entry.max_length,
            "stride": entry.task_kind.overlap(entry.max_length) if entry.task_kind.windows else None,
            "available": name not in serving.unavailable,
        }
        for name, entry in manifest.tasks.items()
    ]
    return Json({"tasks": listed, "templates": sorted(manifest.templates), "tuning": serving.settings.allow_tuning})


@endpoint(ROUTES, "POST", "/v1/tasks/{task}:predict", schemas.Predictions, schemas.PredictRequest, refusals=ASKED)
async def predict(request: Request) -> Response:
    """Answers of one task to a text, a pair, or a list of them."""
    serving, task = serving_of(request), request.path_params["task"]
    serving.service.manifest.task(task)  # before the body is looked at
    asked = await body_of(request, schemas.PredictRequest, serving.settings.limits.rows)
    answers = await answers_of(request, [task] * len(asked.texts), asked.texts, whole=True)
    return Json({"predictions": [answer.as_json() for answer in answers if isinstance(answer, Answer)]})


@endpoint(ROUTES, "POST", "/v1/predict", schemas.Answers, schemas.MixedRequest, refusals=ASKED)
async def predict_mixed(request: Request) -> Response:
    """Rows of any tasks in one batch; a row without a task gets the backbone's embedding."""
    asked = await body_of(request, schemas.MixedRequest, serving_of(request).settings.limits.rows)
    named = asked.named
    answers = await answers_of(request, named, asked.texts)
    small = len(named) <= FEW_ROWS or None not in named
    return await serving_of(request).aside(_mixed_answer, answers, named, small=small)


def _mixed_answer(answers: Sequence[RowResult], named: Sequence[str | None]) -> Json:
    listed: list[dict[str, Any]] = []
    for answer, task in zip(answers, named, strict=True):
        if isinstance(answer, EdgepeftError):
            refused = refusal_of(answer, task)
            listed.append({"error": fault(refused.code, refused.message)})
        elif isinstance(answer, Answer):
            listed.append({"prediction": answer.as_json()})
        else:
            listed.append({"embedding": [float(str(number)) for number in answer]})  # a float32's shortest decimals
    return Json({"answers": listed})


@endpoint(ROUTES, "POST", "/v1/tasks/{task}:stream", body=schemas.TextRow, refusals=ASKED, kind=EVENTS)
async def stream(request: Request) -> Response:
    """What a task that writes text writes for one text: events `piece` with their text, and `answer` or `error`."""
    serving, task = serving_of(request), request.path_params["task"]
    if not serving.service.manifest.task(task).task_kind.writes:
        raise Refused(422, "invalid", f"task {task} writes no text; ask it with :predict.")
    asked = await body_of(request, schemas.TextRow, 1)
    return await streamed(task, lambda tell: answers_of(request, [task], [asked.given], tell=tell))


async def answers_of(
    request: Request, named: Sequence[str | None], texts: Sequence[Readable], *, whole: bool = False, **more: Any
) -> Sequence[RowResult]:
    """The answer of each row, by the batcher; or an error in its place, which is raised for all if ``whole``."""
    serving = serving_of(request)
    if serving.state == "starting" and not serving.opened.issuperset(named):
        raise Refused(503, "starting", "the service is starting.", {"Retry-After": "1"})
    check_texts(texts, serving.settings.limits)
    begin, deadline_s = monotonic(), deadline_of(request)
    until = begin + min(_TRIAL_S, deadline_s or _TRIAL_S)  # most trials take no second
    while any(map(serving.service.untried, set(named))) and monotonic() < until:
        await asyncio.sleep(_POLL_S)
    asked = serving.batcher.submit(named, texts, client=request.scope.get("client"), deadline_s=deadline_s, **more)
    answers = await (while_there(request, asked) if all(map(serving.service.writes, named)) else asked)
    good = [a.task if isinstance(a, Answer) else "" for a in answers if not isinstance(a, EdgepeftError)]
    asyncio.get_running_loop().call_soon(serving.metrics.answered, good, monotonic() - begin)
    if whole and len(good) < len(answers):
        raise next(refusal_of(a, named[row]) for row, a in enumerate(answers) if isinstance(a, EdgepeftError))
    return answers


class Events:
    """How a text is told in server-sent events (HTML Standard, 9.2); JSON in ASCII has no line break.

    event: piece     data: {"text": " it"}                        as often as whole characters were added
    event: answer    data: the prediction as ``:predict`` gives it     once, in the end
    event: error     data: {"error": {"code": ..., "message": ...}}    in its place
    """

    def piece(self, text: str) -> bytes:
        """What was added."""
        return self._event("piece", {"text": text})

    def answer(self, answer: Answer) -> bytes:
        """The whole, in the end."""
        return self._event("answer", answer.as_json())

    def error(self, refused: Refused) -> bytes:
        """Why there is none."""
        return self._event("error", {"error": fault(refused.code, refused.message)})

    def _event(self, name: str, data: Mapping[str, Any]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), bytes(Json(data).body))


async def streamed(
    task: str, answers: Callable[[Tell], Coroutine[Any, Any, Sequence[RowResult]]], events: Events | None = None
) -> Response:
    """The answer to a request for one text, once its first token is written; ``answers`` is given what to tell."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    running = asyncio.create_task(answers(pieces.put_nowait))
    running.add_done_callback(lambda _: pieces.put_nowait(None))
    first = await pieces.get()
    if first is None and isinstance(error := running.result()[0], EdgepeftError):
        raise refusal_of(error, task)
    return StreamingResponse(_told(first, pieces, running, events or Events()), media_type=EVENTS)


async def _told(
    first: str | None, pieces: asyncio.Queue[str | None], running: asyncio.Task[Sequence[RowResult]], events: Events
) -> AsyncIterator[bytes]:
    """Yield the pieces until None, then how the request ended; closed before, the client is gone: write no more."""
    try:
        piece = first
        while piece is not None:
            if piece:
                yield events.piece(piece)
            piece = await pieces.get()
        (answer,) = running.result()
        if isinstance(answer, EdgepeftError):
            raise answer
        assert isinstance(answer, Answer), "a task was asked"
        yield events.answer(answer)
    except Exception as error:
        refused = refusal_of(error)
        if refused.code == "internal":
            log.error("a stream ended", exc_info=error)
        yield events.error(refused)
    finally:
        running.cancel()


@endpoint(
    ROUTES, "POST", "/v1/tasks/{task}:tune", schemas.TuningJob, schemas.TuneRequest, status=202, refusals=(*ASKED, 409)
)
async def start_tuning(request: Request) -> Response:
    """Fine-tune a task on rows, or start one from a template (needs --allow-tuning)."""
    serving, task = serving_of(request), request.path_params["task"]
    if not serving.settings.allow_tuning:
        raise Refused(403, "tuning_is_off", "tuning is off; the service is started with --allow-tuning to allow it.")
    asked = await body_of(request, schemas.TuneRequest, serving.settings.limits.tuning_rows)
    manifest = serving.service.manifest
    if asked.template is None:
        manifest.task(task)
    else:
        manifest.template(asked.template)
        try:
            check_task_name(task)
        except UsageError as error:
            raise Refused(422, "invalid", str(error)) from None
    await serving.aside(check_taught, asked, serving.settings.limits)
    return Json(await asyncio.to_thread(serving.jobs.start, task, asked), 202)


@endpoint(ROUTES, "GET", "/v1/jobs/{job}", schemas.TuningJob, refusals=(404,))
async def job(request: Request) -> Response:
    """How a fine-tuning run stands."""
    return Json(serving_of(request).jobs.state(request.path_params["job"]))


@endpoint(ROUTES, "DELETE", "/v1/jobs/{job}", schemas.TuningJob, status=202, refusals=(404,))
async def stop_job(request: Request) -> Response:
    """Stop a fine-tuning run."""
    return Json(serving_of(request).jobs.stop(request.path_params["job"]), 202)


@endpoint(ROUTES, "GET", "/v1/status", schemas.Status)
async def status(request: Request) -> Response:
    """Throughput, latency and memory now."""
    serving, metrics = serving_of(request), serving_of(request).metrics
    rate, middle, high = metrics.recent()
    return Json(
        {
            "ready": serving.state == "ok",
            "tasks": len(serving.service.manifest.tasks),
            "uptime_s": round(monotonic() - metrics.started, 1),
            "rows": metrics.total_rows,
            "rows_per_s": round(rate, 2),
            "latency_p50_ms": None if middle is None else round(middle * 1000, 2),
            "latency_p90_ms": None if high is None else round(high * 1000, 2),
            "queued_rows": serving.batcher.queued_rows,
            "memory_bytes": psutil.Process().memory_info().rss,
        }
    )


@endpoint(ROUTES, "GET", "/healthz", schemas.Health)
async def healthz(_: Request) -> Response:
    """Whether the process answers."""
    return Json({"status": "ok"})


@endpoint(ROUTES, "GET", "/readyz", schemas.Health, refusals=(503,))
async def readyz(request: Request) -> Response:
    """Whether it is ready to be asked."""
    serving = serving_of(request)
    document: dict[str, Any] = {"status": serving.state, "unavailable_tasks": len(serving.unavailable)}
    if request.scope.get(AUTHORIZED):  # names are for who sent the token
        document["unavailable"] = sorted(serving.unavailable)
    return Json(document, 200 if serving.state == "ok" else 503)


@endpoint(ROUTES, "GET", "/metrics")
async def metrics(request: Request) -> Response:
    """Counters for Prometheus, as text."""
    text = generate_latest(serving_of(request).metrics.registry)
    return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE_LATEST})

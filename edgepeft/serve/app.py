"""The application: routes, page and documentation behind the guard, with what starts and stops with it."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from edgepeft.common.resources import package_data
from edgepeft.common.task_name import TASK_NAME
from edgepeft.runtime.session import MAX_SESSIONS
from edgepeft.serve.batcher import Batcher, Closing
from edgepeft.serve.guard import DEADLINE_HEADER, Guard
from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.openai import ENDPOINTS
from edgepeft.serve.problems import Json
from edgepeft.serve.routes import ROUTES, Endpoint, Serving
from edgepeft.serve.schemas import Problem
from edgepeft.serve.service import Service
from edgepeft.serve.settings import Settings
from edgepeft.serve.tuning import Jobs

log = logging.getLogger("edgepeft.serve")

_ROUTES = (*ROUTES, *ENDPOINTS)
_WATCH_S = 1.0
_TRIED_S = 0.05
_PAGES = {"/": "page.html", "/docs": "docs.html"}  # need no token, as health checks: the page asks for it


def create_app(settings: Settings) -> Starlette:
    """The ASGI application."""
    service = Service(settings)
    metrics = ServiceMetrics()
    of_text: Any = {"write": service.write, "writes": service.writes}
    batcher = Batcher(service.answer, settings.limits, metrics.batch, service.kind, settings.workers, **of_text)
    serving = Serving(settings, service, batcher, metrics, Jobs(settings.bundle, settings.threads))
    metrics.gauge("edgepeft_queued_rows", "Rows that wait.", lambda: batcher.queued_rows)
    metrics.gauge("edgepeft_tasks", "Tasks of the bundle.", lambda: len(service.manifest.tasks))
    metrics.gauge("edgepeft_truncated_rows", "Answers that read a cut text, so far.", lambda: service.truncated_rows)
    metrics.gauge("edgepeft_unavailable_tasks", "Tasks that cannot be opened.", lambda: len(serving.unavailable))
    metrics.gauge("edgepeft_ready", "Whether it answers.", lambda: serving.state == "ok")
    folder = package_data("serve")
    document = _openapi_document(token=settings.token is not None)

    of_paths = {e.path: _Methods(e.path) for e in _ROUTES}  # one endpoint each, so that 405 answers list its methods
    routes: list[Route | Mount] = [Route(path, its, methods=list(its.calls)) for path, its in of_paths.items()]
    routes += [Route(path, lambda _, name=name: FileResponse(folder / name)) for path, name in _PAGES.items()]
    routes.append(Route("/openapi.json", lambda _: Json(document)))
    routes.append(Mount("/static", StaticFiles(directory=folder)))
    open_paths = [*_PAGES, "/healthz", "/readyz", *(f"/static/{path.name}" for path in folder.iterdir())]
    app = Starlette(routes=routes, lifespan=_lifespan)
    # It alone, in place of Starlette's two layers that answer errors.
    app.middleware_stack = Guard(app.router, settings, metrics, open_paths)
    app.state.serving = serving
    return app


class _Methods:
    """A path's functions by method.  An ASGI application: around a function Starlette puts a layer for errors."""

    def __init__(self, path: str) -> None:
        self.calls = {e.method: e.call for e in _ROUTES if e.path == path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self.calls.get(scope["method"]) or self.calls["GET"]  # Starlette takes HEAD where there is GET
        response = await call(Request(scope, receive, send))
        await response(scope, receive, send)


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    serving: Serving = app.state.serving
    loop = asyncio.get_running_loop()
    serving.batcher.start()
    serving.jobs.done = lambda: loop.call_soon_threadsafe(reload_soon, serving)
    _in_background(serving, _start(serving))
    if not serving.settings.no_watch:
        _in_background(serving, _watch(serving))
    try:
        yield
    finally:
        serving.state = "stopping"
        for task in serving.tasks:
            task.cancel()
        await asyncio.to_thread(serving.jobs.close)
        await asyncio.to_thread(serving.batcher.close)
        serving.service.close()


def _in_background(serving: Serving, work: Any) -> asyncio.Task[None]:
    task: asyncio.Task[None] = asyncio.create_task(work)
    serving.tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(serving.tasks.discard)
    return task


async def _start(serving: Serving) -> None:
    with contextlib.suppress(Closing):
        await _open_tasks(serving)
        if serving.state == "starting":
            serving.state = "ok"
            serving.started.set()
        tasks = len(serving.service.manifest.tasks) - len(serving.unavailable)
        log.info("ready, with %d task%s", tasks, "" if tasks == 1 else "s")


async def _open_tasks(serving: Serving) -> None:
    """Open the tasks' sessions, those first whose trials end first; goes on in the background with what takes long."""
    if serving.opening is not None:
        serving.opening.cancel()
    waited = asyncio.Event()
    serving.opening = _in_background(serving, _open_as_tried(serving, waited))
    serving.opening.add_done_callback(lambda _: waited.set())
    await waited.wait()


async def _open_as_tried(serving: Serving, waited: asyncio.Event) -> None:
    """Open tasks, each between two batches, and mark those that cannot be; ``waited`` is set when that takes long."""
    service, since = serving.service, monotonic()
    left = list(service.runtime.tasks[:MAX_SESSIONS])  # the others open when they are first asked
    serving.unavailable &= set(left)
    while left:
        for task in [task for task in left if not service.untried(task)]:
            left.remove(task)
            try:
                await serving.batcher.between(partial(service.warm, task))
            except Closing:
                return
            except Exception as error:  # whatever a file from elsewhere makes of the libraries that read it
                log.error("task %s cannot be run: %s", task, error)
                serving.unavailable.add(task)
            else:
                serving.unavailable.discard(task)
                serving.opened.add(task)
        if left and not waited.is_set() and service.overdue(since):
            log.warning("still being tried, and answered when that is done: %s", ", ".join(left))
            serving.unavailable.update(left)
            waited.set()
        await asyncio.sleep(_TRIED_S if left else 0)


async def _watch(serving: Serving) -> None:
    while True:
        await asyncio.sleep(_WATCH_S)
        if serving.service.changed:
            await _reload(serving)


def reload_soon(serving: Serving) -> None:
    """Read the bundle again between two batches; from the loop's thread."""
    _in_background(serving, _reload(serving))


async def _reload(serving: Serving) -> None:
    try:
        changed = await serving.batcher.between(serving.service.reload)
        await _open_tasks(serving)
    except Closing:
        return
    except Exception as error:  # as above: the watch goes on
        serving.metrics.reloads.labels("failed").inc()
        log.error("the bundle was not read again, what was open goes on answering: %s", error)
    else:
        serving.metrics.reloads.labels("done").inc()
        log.info("read again; changed: %s", ", ".join(changed) or "nothing")


def _openapi_document(*, token: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document, from the table of routes; ``token`` says whether requests need one."""
    models = {m for r in _ROUTES for m in (r.answer, r.body) if m is not None} | {Problem}
    ordered = sorted(models, key=lambda m: m.__name__)
    _, schemas = models_json_schema([(m, "validation") for m in ordered], ref_template="#/components/schemas/{model}")
    paths: dict[str, dict[str, Any]] = {}
    for route in _ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, token=token)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgepeft", "version": "1", "description": "The tasks of one bundle."},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(route: Endpoint, *, token: bool) -> dict[str, Any]:
    refusals = {*route.refusals, 403, *((401,) if token else ())}
    refusal = route.answer if route.path == "/readyz" else Problem
    operation: dict[str, Any] = {
        "operationId": route.call.__name__,
        "summary": route.call.__doc__,
        "responses": {
            str(route.status): _content(route.answer, HTTPStatus(route.status).phrase, route.kind),
            **{str(s): _content(refusal, HTTPStatus(s).phrase) for s in sorted(refusals)},
        },
    }
    text = {"type": "string"}
    schemas = {"task": {**text, "pattern": TASK_NAME}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": schemas.get(name, text)}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(route.body)}
        if route.status == HTTPStatus.OK:
            parameters.append(_DEADLINE)
    if parameters:
        operation["parameters"] = parameters
    return operation


_DEADLINE = {
    "name": DEADLINE_HEADER,
    "in": "header",
    "required": False,
    "description": "Answer within so many milliseconds, or 504.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
}


def _content(model: type[BaseModel] | None, description: str | None = None, kind: str = "text/plain") -> dict[str, Any]:
    described: dict[str, Any] = {} if description is None else {"description": description}
    if model is None:
        return {**described, "content": {kind: {"schema": {"type": "string"}}}}
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {**described, "content": {"application/json": {"schema": reference}}}

"""The application: routes, page and documentation behind the guard, with what starts and stops with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from edgepeft.common.resources import package_data
from edgepeft.serve.batcher import Batcher, Closing
from edgepeft.serve.embeddings import ENDPOINTS
from edgepeft.serve.guard import Guard
from edgepeft.serve.metrics import ServiceMetrics
from edgepeft.serve.openapi import openapi_document
from edgepeft.serve.problems import HANDLERS, Json
from edgepeft.serve.routes import ROUTES, Serving
from edgepeft.serve.service import Service
from edgepeft.serve.settings import Settings
from edgepeft.serve.tuning import Jobs

__all__ = ["create_app", "reload_soon"]

log = logging.getLogger("edgepeft.serve")

_ROUTES = (*ROUTES, *ENDPOINTS)
_WATCH_S = 1.0
_STATIC = ("page.html", "page.css", "page.js", "answers.js", "picker.js", "docs.html", "docs.js", "icon.svg")


def create_app(settings: Settings) -> Starlette:
    """The ASGI application.

    Raises:
        UsageError, BundleError, VerificationFailed: the bundle cannot be served.
    """
    service = Service(settings)
    metrics = ServiceMetrics()
    of_text: Any = {"write": service.write, "writes": service.writes}
    batcher = Batcher(service.answer, settings.limits, metrics.batch, service.kind, settings.workers, **of_text)
    serving = Serving(settings, service, batcher, metrics, Jobs(settings.bundle, settings.threads))
    for name, about, value in (
        ("edgepeft_queued_rows", "Rows that wait.", lambda: batcher.queued_rows),
        ("edgepeft_tasks", "Tasks of the bundle.", lambda: len(service.manifest.tasks)),
        ("edgepeft_truncated_rows", "Answers that read a cut text, so far.", lambda: service.truncated_rows),
        ("edgepeft_unavailable_tasks", "Tasks that cannot be opened.", lambda: len(serving.unavailable)),
        ("edgepeft_ready", "Whether it answers.", lambda: serving.state == "ok"),
    ):
        metrics.gauge(name, about, value)
    folder = package_data("serve")
    document = openapi_document(_ROUTES, token=settings.token is not None)

    async def page(_: Request) -> Response:
        return FileResponse(folder / "page.html")

    async def docs(_: Request) -> Response:
        return FileResponse(folder / "docs.html")

    async def openapi(_: Request) -> Response:
        return Json(document)

    routes: list[Route | Mount] = [_route(path) for path in dict.fromkeys(e.path for e in _ROUTES)]
    routes += [Route("/", page), Route("/docs", docs), Route("/openapi.json", openapi)]
    routes.append(Mount("/static", StaticFiles(directory=folder)))
    open_paths = ["/", "/docs", "/healthz", "/readyz", *(f"/static/{name}" for name in _STATIC)]
    guard: Any = Middleware(Guard, settings=settings, metrics=metrics, open_paths=open_paths)
    handlers: Any = HANDLERS
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers, lifespan=_lifespan)
    app.state.serving = serving
    return app


def _route(path: str) -> Route:
    """One for all methods of a path, so that an answer of 405 names them all."""
    calls = {e.method: e.call for e in _ROUTES if e.path == path}
    if "GET" in calls:
        calls["HEAD"] = calls["GET"]

    async def call(request: Request) -> Response:
        return await calls[request.method](request)

    return Route(path, call, methods=list(calls))


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    serving: Serving = app.state.serving
    loop = asyncio.get_running_loop()
    serving.batcher.start()
    serving.jobs.on_done(lambda: loop.call_soon_threadsafe(reload_soon, serving))
    _in_background(serving, _warm(serving))
    if serving.settings.watch:
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


def _in_background(serving: Serving, work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    serving.tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(serving.tasks.discard)


async def _warm(serving: Serving) -> None:
    with contextlib.suppress(Closing):
        await _warm_tasks(serving)
        if serving.state == "starting":
            serving.state = "ok"
            serving.started.set()
        tasks = len(serving.service.manifest.tasks) - len(serving.unavailable)
        log.info("ready, with %d task%s", tasks, "" if tasks == 1 else "s")


async def _warm_tasks(serving: Serving) -> None:
    """Open the tasks' sessions, each between two batches, and mark those that cannot be opened."""
    serving.unavailable &= set(serving.service.first_tasks)
    await asyncio.to_thread(serving.service.try_first)
    for task in serving.service.first_tasks:
        try:
            await serving.batcher.between(partial(serving.service.warm, task))
        except Closing:
            raise
        except Exception as error:  # whatever a file from elsewhere makes of the libraries that read it
            log.error("task %s cannot be run: %s", task, error)
            serving.unavailable.add(task)
        else:
            serving.unavailable.discard(task)


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
        await _warm_tasks(serving)
    except Closing:
        return
    except Exception as error:  # as above: the watch goes on
        serving.metrics.reloads.labels("failed").inc()
        log.error("the bundle was not read again, what was open goes on answering: %s", error)
    else:
        serving.metrics.reloads.labels("done").inc()
        log.info("read again; changed: %s", ", ".join(changed) or "nothing")

"""The OpenAPI 3.1 document, from the table of routes and the models that check the requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from edgepeft.common.task_name import TASK_NAME
from edgepeft.serve.routes import Endpoint
from edgepeft.serve.schemas import Problem
from edgepeft.serve.sizes import DEADLINE_HEADER

__all__ = ["openapi_document"]


def openapi_document(routes: Iterable[Endpoint], *, token: bool) -> dict[str, Any]:
    """The document; ``token`` says whether requests need one."""
    routes = tuple(routes)
    models = {m for r in routes for m in (r.answer, r.body) if m is not None} | {Problem}
    kinds: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (m, "validation") for m in sorted(models, key=lambda m: m.__name__)
    ]
    _, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
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
        "summary": route.about,
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

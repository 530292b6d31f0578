"""Errors as answers: a status, a code and a sentence, never a path, a version or a traceback."""

import json
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from edgepeft.common.errors import BundleError, DataError, DoesNotFit, EdgepeftError, UnknownName, Unwritable
from edgepeft.common.messages import listed_mistakes, mistakes_text
from edgepeft.data.pattern import UnreadableRow
from edgepeft.serve.batcher import Closing, DeadlinePassed, QueueFull
from edgepeft.serve.trial import Untried

log = logging.getLogger("edgepeft.serve")

# Of every answer, which the guard sees to.
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
)

_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class Json(JSONResponse):
    """ASCII only: a lone surrogate, which a client may send, has no UTF-8."""

    def render(self, content: Any) -> bytes:
        """The document's bytes."""
        return _ENCODER.encode(content).encode()


class Refused(Exception):
    """A request that is refused, with what its client is sent."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


_OF_HTTP = {404: ("not_found", "there is nothing here; see /docs"), 405: ("method_not_allowed", "see /docs")}


def fault(code: str, message: str) -> dict[str, str]:
    """The ``error`` of an answer."""
    return {"code": code, "message": message}


def problem(refused: Refused, more: Mapping[str, Any] = MappingProxyType({})) -> Json:
    """The answer to a request that was refused; ``more`` stands beside its code and message."""
    return Json({"error": {**fault(refused.code, refused.message), **more}}, refused.status, refused.headers)


KEYS = set[str]()  # what requests may have, and an answer may name; each endpoint adds its own


def _invalid(error: ValidationError, _: str | None) -> Refused:
    """The first thing that is wrong; no value that was sent is repeated."""
    said = mistakes_text(error, "the body", KEYS)
    if any(one["type"] == "json_invalid" for one in listed_mistakes(error)[:1]):
        return Refused(400, "not_json", f"{said}.")
    return Refused(422, "invalid", f"{said}; /docs shows what is asked for.")


def refusal_of(error: Exception, task: str | None = None) -> Refused:
    """Make of an error what its client may know; the rest goes to the log, since messages name files."""
    return next(_REFUSALS[kind](error, task) for kind in type(error).__mro__ if kind in _REFUSALS)


def _shown(status: int, code: str) -> Callable[[Any, str | None], Refused]:
    return lambda error, _: Refused(status, code, str(error))


def _logged(status: int, code: str, message: str) -> Callable[[Any, str | None], Refused]:
    def refused(error: Any, task: str | None) -> Refused:
        log.error("task %s: %s", task, error)
        return Refused(status, code, message.format(task=task))

    return refused


_FAILED = "the service failed; its log says why."
_REFUSALS: dict[type, Callable[[Any, str | None], Refused]] = {
    Refused: lambda error, _: error,
    HTTPException: lambda e, _: Refused(
        e.status_code, *_OF_HTTP.get(e.status_code, ("refused", "see /docs")), e.headers
    ),
    ValidationError: _invalid,
    QueueFull: lambda e, _: Refused(429, "queue_full", f"{e}.", {"Retry-After": str(e.retry_after_s)}),
    DeadlinePassed: lambda *_: Refused(504, "deadline_passed", "there was no answer within the deadline."),
    Closing: lambda *_: Refused(503, "stopping", "the service stops.", {"Retry-After": "5", "Connection": "close"}),
    # Their messages name nothing of this machine.
    UnknownName: _shown(404, "unknown_task"),
    UnreadableRow: _shown(422, "unreadable_row"),
    Unwritable: _shown(422, "unwritable"),
    DoesNotFit: _shown(503, "does_not_fit"),
    Untried: lambda _, task: Refused(503, "starting", f"task {task} is being tried; ask again.", {"Retry-After": "1"}),
    DataError: lambda *_: Refused(422, "no_token", "a text has no token that the backbone knows."),
    BundleError: _logged(503, "task_unavailable", "task {task} cannot be run here; the service's log says why."),
    EdgepeftError: _logged(500, "internal", _FAILED),
    Exception: lambda *_: Refused(500, "internal", _FAILED),
}
# Others are failures of ours.
EXPECTED: tuple[type[Exception], ...] = tuple(kind for kind in _REFUSALS if kind is not Exception)

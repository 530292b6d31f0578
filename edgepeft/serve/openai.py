"""``/v1/embeddings``, ``/v1/completions`` and ``/v1/chat/completions``, as OpenAI's clients ask: ``model`` is a task.

A task has its instruction in the template that it was trained with, so a conversation is one message of the user's.
Texts are written greedily: what asks for chance, or for several texts, is refused, not left out.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from time import time
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.errors import EdgepeftError, MissingPackage, UnknownName, Unwritable
from edgepeft.common.messages import listed_mistakes
from edgepeft.data.answers import Answer, VectorPrediction
from edgepeft.runtime.decoding import GREEDY
from edgepeft.runtime.grammar import ANY_OBJECT
from edgepeft.runtime.prediction import RowResult, TextAnswer
from edgepeft.serve.openai_bodies import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    EmbeddingList,
    EmbeddingsRequest,
)
from edgepeft.serve.problems import EXPECTED, Json, Refused, problem, refusal_of
from edgepeft.serve.routes import (
    ASKED,
    FEW_ROWS,
    Call,
    Endpoint,
    Events,
    Serving,
    answers_of,
    body_of,
    endpoint,
    streamed,
)

_OVERLOADED = 429


ENDPOINTS: list[Endpoint] = []


def _refusing(call: Call) -> Call:
    """Errors as OpenAI's clients read them."""

    @wraps(call)
    async def answered(request: Request) -> Response:
        try:
            return await call(request)
        except EXPECTED as error:
            return _problem(error)

    return answered


@endpoint(ENDPOINTS, "POST", "/v1/embeddings", EmbeddingList, EmbeddingsRequest, refusals=ASKED)
@_refusing
async def embeddings(request: Request) -> Response:
    """Vectors of one text or several, as OpenAI's clients ask for them; the model is a task that answers vectors."""
    serving: Serving = request.app.state.serving
    asked = await body_of(request, EmbeddingsRequest, serving.settings.limits.rows)
    _check(serving, asked)
    texts = asked.texts
    answers = await answers_of(request, [asked.model] * len(texts), texts)
    for answer in answers:
        if isinstance(answer, EdgepeftError):
            raise answer
    n_tokens = await asyncio.to_thread(serving.service.runtime.n_tokens, asked.model, texts)
    if len(texts) <= FEW_ROWS:
        return _listed(asked, answers, n_tokens)
    return await serving.aside(_listed, asked, answers, n_tokens)


def _check(serving: Serving, asked: EmbeddingsRequest) -> None:
    kind = serving.service.manifest.task(asked.model).task_kind
    if not kind.gives_vectors:
        raise Refused(400, "no_embedding", f"model: task {asked.model} answers {kind.answers}, not vectors.")
    if asked.dimensions is not None and asked.dimensions > kind.n_outputs:
        raise Refused(400, "invalid", f"dimensions: the vectors of {asked.model} have {kind.n_outputs}.")
    for row, text in enumerate(asked.texts):
        if not text.strip():
            raise Refused(400, "empty_text", f"input: text {row} is empty.")


def _listed(asked: EmbeddingsRequest, answers: Sequence[RowResult], n_tokens: int) -> Json:
    data = []
    for index, answer in enumerate(answers):
        assert isinstance(answer, VectorPrediction), "the kind of the task was looked at, and errors are raised"
        cut, packed = answer.cut(asked.dimensions), asked.encoding_format == "base64"
        shown = base64.b64encode(cut.vector.astype("<f4").tobytes()).decode("ascii") if packed else cut.value
        data.append({"object": "embedding", "index": index, "embedding": shown})
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Json({"object": "list", "data": data, "model": asked.model, "usage": usage})


def _problem(error: Exception) -> Response:
    """As OpenAI's clients read it: ``type`` and ``param`` beside message and code."""
    refused, unknown = refusal_of(error), isinstance(error, UnknownName)
    param = "model" if unknown else refused.message.partition(":")[0]
    if isinstance(error, ValidationError):
        param = str(next((part for one in listed_mistakes(error)[:1] for part in one["loc"]), ""))
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    more: dict[str, Any] = {
        "type": "rate_limit_error" if refused.status == _OVERLOADED else kind,
        "param": param if any(param in each.model_fields for each in _REQUESTS) else None,
    }
    if unknown:
        refused = Refused(refused.status, "model_not_found", refused.message, refused.headers)
    return problem(refused, more)


_REQUESTS = (EmbeddingsRequest, CompletionRequest, ChatRequest)


@dataclass(frozen=True)
class _Form(Events):
    """How completions, or those of a chat, are said: whole, or in chunks of a stream, which ``[DONE]`` ends."""

    model: str
    chat: bool
    id: str
    created: int

    @classmethod
    def of(cls, asked: CompletionRequest | ChatRequest) -> _Form:
        chat = isinstance(asked, ChatRequest)
        return cls(asked.model, chat, f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}", int(time()))

    def whole(self, answers: Sequence[TextAnswer], n_tokens: int) -> Json:
        """All texts at once."""
        choices = []
        for index, answer in enumerate(answers):
            said: dict[str, Any] = {"text": answer.text}
            if self.chat:
                said = {"message": {"role": "assistant", "content": answer.text}}
            choices.append({"index": index, **said, "finish_reason": _reason(answer)})
        written = sum(len(answer.tokens) + answer.ended for answer in answers)
        usage = {"prompt_tokens": n_tokens, "completion_tokens": written, "total_tokens": n_tokens + written}
        return Json({**self._named(""), "choices": choices, "usage": usage})

    def piece(self, text: str) -> bytes:
        """A chunk."""
        return self._chunk({"delta": {"role": "assistant", "content": text}} if self.chat else {"text": text}, None)

    def answer(self, answer: Answer) -> bytes:
        """The last chunk, which is empty."""
        assert isinstance(answer, TextAnswer), "the task writes"
        return self._chunk({"delta": {}} if self.chat else {"text": ""}, _reason(answer)) + b"data: [DONE]\n\n"

    def error(self, refused: Refused) -> bytes:
        """As the client reads it: an exception."""
        return b"data: %b\n\n" % bytes(problem(refused, {"type": "server_error", "param": None}).body)

    def _chunk(self, said: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": 0, **said, "finish_reason": reason}
        return b"data: %b\n\n" % bytes(Json({**self._named(".chunk"), "choices": [choice]}).body)

    def _named(self, part: str) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _reason(answer: TextAnswer) -> str:
    return "stop" if answer.ended else "length"


@endpoint(ENDPOINTS, "POST", "/v1/completions", Completion, CompletionRequest, refusals=ASKED)
@_refusing
async def completions(request: Request) -> Response:
    """What a task that writes text writes for one prompt or several, as OpenAI's clients ask; a stream of one."""
    return await _completions(request, CompletionRequest)


@endpoint(ENDPOINTS, "POST", "/v1/chat/completions", ChatCompletion, ChatRequest, refusals=ASKED)
@_refusing
async def chat(request: Request) -> Response:
    """What a task that writes text writes for one message, as OpenAI's clients ask."""
    return await _completions(request, ChatRequest)


async def _completions(request: Request, model: type[CompletionRequest | ChatRequest]) -> Response:
    serving: Serving = request.app.state.serving
    asked = await body_of(request, model, serving.settings.limits.rows)
    texts, form = asked.texts, _Form.of(asked)
    kind = serving.service.manifest.task(asked.model).task_kind
    if not kind.writes:
        raise Refused(400, "no_text", f"model: task {asked.model} answers {kind.answers}, and writes no text.")
    if asked.stream and len(texts) > 1:
        raise Refused(400, "invalid", "prompt: a stream is of one text.")
    schema = await _schema(serving, asked) if isinstance(asked, ChatRequest) else None
    limits = (asked.max_tokens, asked.max_completion_tokens if isinstance(asked, ChatRequest) else None)
    most = min((limit for limit in limits if limit is not None), default=None)
    if asked.stream:
        return await streamed(
            asked.model,
            lambda tell: answers_of(request, [asked.model], texts, tell=tell, most=most, schema=schema),
            form,
        )
    answers = await answers_of(request, [asked.model] * len(texts), texts, most=most, schema=schema)
    for answer in answers:
        if isinstance(answer, EdgepeftError):
            raise answer
    runtime = serving.service.runtime
    n_tokens = await asyncio.to_thread(runtime.n_tokens, asked.model, texts)
    written = [answer for answer in answers if isinstance(answer, TextAnswer)]
    return form.whole([_cut(answer, most, runtime.bundle.encoder()) for answer in written], n_tokens)


async def _schema(serving: Serving, asked: ChatRequest) -> Mapping[str, Any] | None:
    """What the answer is to keep to, if the request says it; the task's own where any object would do."""
    form = asked.response_format
    if form is None or form.type == "text":
        return None
    own = serving.service.manifest.task(asked.model).json_schema or {}
    given = ANY_OBJECT if form.json_schema is None else form.json_schema.schema_
    schema = own if form.json_schema is None and own.get("type") == "object" else given
    try:
        await asyncio.to_thread(serving.service.runtime.generator.guide, asked.model, GREEDY, schema)
    except Unwritable as error:
        raise Refused(400, "invalid_schema", f"response_format: {error}") from error
    except MissingPackage as error:
        raise Refused(
            501, "no_grammar", "response_format: this service has no grammars, for want of llguidance."
        ) from error
    return schema


def _cut(answer: TextAnswer, most: int | None, encoder: TextEncoder) -> TextAnswer:
    """One that was written beside no other knows of no limit."""
    if most is None or len(answer.tokens) + answer.ended <= most:
        return answer
    tokens = answer.tokens[:most]
    return replace(answer, text=encoder.decode(tokens), tokens=tokens, ended=False)

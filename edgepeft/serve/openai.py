"""``/v1/embeddings``, ``/v1/completions`` and ``/v1/chat/completions``, as OpenAI's clients ask: ``model`` is a task.

A task has its instruction in the template that it was trained with, so a conversation is one message of the user's.
Texts are written greedily: what asks for chance, or for several texts, is refused, not left out.
"""

import asyncio
import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from http import HTTPStatus
from time import time
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import Response

from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.errors import MissingPackage, Unwritable
from edgepeft.common.messages import listed_mistakes
from edgepeft.runtime.decoding import ANY_OBJECT, GREEDY
from edgepeft.runtime.prediction import RowResult, TextAnswer
from edgepeft.serve.problems import EXPECTED, Json, Refused, problem, refusal_of
from edgepeft.serve.routes import (
    ASKED,
    FEW_ROWS,
    Call,
    Endpoint,
    Events,
    answers_of,
    body_of,
    endpoint,
    serving_of,
    streamed,
)
from edgepeft.serve.schemas import Asked, Listed
from edgepeft.tasks._answers import Answer, VectorPrediction

ENDPOINTS: list[Endpoint] = []


class EmbeddingsRequest(Asked):
    """One text or several; ``dimensions`` keeps the first numbers of each vector, of length 1 again."""

    model: str = Field(description="A task that answers vectors.", examples=["near"])
    input: str | Annotated[Listed[str], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: of float32 numbers, little-endian."
    )
    dimensions: int | None = Field(default=None, ge=1)
    user: str | None = Field(default=None, description="Not looked at.")

    @property
    def texts(self) -> list[str]:
        """In order."""
        return [self.input] if isinstance(self.input, str) else self.input


class _Writes(Asked):
    """What both requests for a text have."""

    model: str = Field(description="A task that writes text.", examples=["summary"])
    max_tokens: int | None = Field(default=None, ge=1, le=GREEDY.max_new_tokens)
    stream: bool = False
    temperature: Literal[0] | None = Field(default=None, description="Texts are written greedily.")
    n: Literal[1] = 1
    user: str | None = Field(default=None, description="Not looked at.")


class CompletionRequest(_Writes):
    """One text or several; a stream is of one."""

    prompt: str | Annotated[Listed[str], Field(min_length=1)]

    @property
    def texts(self) -> list[str]:
        """In order."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class TextPart(Asked):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Asked):
    """What the user says."""

    role: Literal["user"] = Field(description="A task has its instruction in its template: there is no other.")
    content: str | Listed[TextPart]
    name: str | None = None


class NamedSchema(Asked):
    """A JSON schema; what it is called, and how strictly it is meant, is not looked at: answers always keep to it."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    schema_: dict[str, Any] = Field(alias="schema", examples=[{"type": "object"}])
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Asked):
    """Any text, any JSON object, or what a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(default=None, description="Of the type json_schema, and of no other.")

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("json_schema is given with the type json_schema, and with no other")
        return self


class ChatRequest(_Writes):
    """A conversation of one message."""

    messages: Annotated[Listed[Message], Field(min_length=1, max_length=1)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=GREEDY.max_new_tokens)
    response_format: ResponseFormat | None = None

    @property
    def texts(self) -> list[str]:
        """The one, of all its parts."""
        contents = [message.content for message in self.messages]
        return [each if isinstance(each, str) else "".join(part.text for part in each) for each in contents]


class Usage(BaseModel):
    """Tokens that were read, those that begin and end a text among them."""

    prompt_tokens: int
    total_tokens: int


class TextUsage(Usage):
    """Tokens that were read, and written, the one that ends a text too."""

    completion_tokens: int


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length"]


class CompletionChoice(_Choice):
    """A text, and whether it ended by itself."""

    text: str


class Said(BaseModel):
    """The task's answer."""

    role: Literal["assistant"]
    content: str


class ChatChoice(_Choice):
    """A message, and whether it ended by itself."""

    message: Said


class _Written(BaseModel):
    id: str
    created: int
    model: str
    usage: TextUsage


class Completion(_Written):
    """What was written for each prompt, in order."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletion(_Written):
    """What was written."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class EmbeddingBody(BaseModel):
    """One text's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """A vector for each text, in order."""

    object: Literal["list"]
    data: list[EmbeddingBody]
    model: str
    usage: Usage


def _refusing(call: Call) -> Call:
    """Errors as OpenAI's clients read them: ``type`` and ``param`` beside message and code."""

    @wraps(call)
    async def answered(request: Request) -> Response:
        try:
            return await call(request)
        except EXPECTED as error:
            refused = refusal_of(error)
            param = refused.message.partition(":")[0]
            if refused.code == "unknown_task":
                refused.code, param = "model_not_found", "model"
            if isinstance(error, ValidationError):
                param = str(next((part for one in listed_mistakes(error)[:1] for part in one["loc"]), ""))
            known = EmbeddingsRequest.model_fields | CompletionRequest.model_fields | ChatRequest.model_fields
            kind = "invalid_request_error" if refused.status < 500 else "server_error"
            kind = "rate_limit_error" if refused.status == HTTPStatus.TOO_MANY_REQUESTS else kind
            return problem(refused, {"type": kind, "param": param if param in known else None})

    return answered


@endpoint(ENDPOINTS, "POST", "/v1/embeddings", EmbeddingList, EmbeddingsRequest, refusals=ASKED)
@_refusing
async def embeddings(request: Request) -> Response:
    """Vectors of one text or several, as OpenAI's clients ask for them; the model is a task that answers vectors."""
    serving = serving_of(request)
    asked = await body_of(request, EmbeddingsRequest, serving.settings.limits.rows)
    kind, texts = serving.service.manifest.task(asked.model).task_kind, asked.texts
    if not kind.gives_vectors:
        raise Refused(400, "no_embedding", f"model: task {asked.model} answers {kind.answers}, not vectors.")
    if asked.dimensions is not None and asked.dimensions > kind.n_outputs:
        raise Refused(400, "invalid", f"dimensions: the vectors of {asked.model} have {kind.n_outputs}.")
    if (empty := next((row for row, text in enumerate(texts) if not text.strip()), None)) is not None:
        raise Refused(400, "empty_text", f"input: text {empty} is empty.")
    answers = await answers_of(request, [asked.model] * len(texts), texts, whole=True)
    n_tokens = await asyncio.to_thread(serving.service.runtime.n_tokens, asked.model, texts)
    return await serving.aside(_listed, asked, answers, n_tokens, small=len(texts) <= FEW_ROWS)


def _listed(asked: EmbeddingsRequest, answers: Sequence[RowResult], n_tokens: int) -> Json:
    data = []
    for index, answer in enumerate(answers):
        assert isinstance(answer, VectorPrediction), "the kind of the task was looked at, and errors are raised"
        cut, packed = answer.cut(asked.dimensions), asked.encoding_format == "base64"
        shown = base64.b64encode(cut.vector.astype("<f4").tobytes()).decode("ascii") if packed else cut.value
        data.append({"object": "embedding", "index": index, "embedding": shown})
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Json({"object": "list", "data": data, "model": asked.model, "usage": usage})


class _Form(Events):
    """How completions, or those of a chat, are said: whole, or in chunks of a stream, which ``[DONE]`` ends."""

    def __init__(self, asked: CompletionRequest | ChatRequest) -> None:
        self.model, self.chat, self.created = asked.model, isinstance(asked, ChatRequest), int(time())
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"

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
        """An error as the client reads it: an exception."""
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
    serving = serving_of(request)
    asked = await body_of(request, model, serving.settings.limits.rows)
    texts, form = asked.texts, _Form(asked)
    kind = serving.service.manifest.task(asked.model).task_kind
    if not kind.writes:
        raise Refused(400, "no_text", f"model: task {asked.model} answers {kind.answers}, and writes no text.")
    if asked.stream and len(texts) > 1:
        raise Refused(400, "invalid", "prompt: a stream is of one text.")
    schema = await _schema(request, asked) if isinstance(asked, ChatRequest) else None
    limits = (asked.max_tokens, asked.max_completion_tokens if isinstance(asked, ChatRequest) else None)
    most = min((limit for limit in limits if limit is not None), default=None)
    named = [asked.model] * len(texts)
    more: dict[str, Any] = {"most": most, "schema": schema}
    if asked.stream:
        return await streamed(asked.model, lambda tell: answers_of(request, named, texts, tell=tell, **more), form)
    answers = await answers_of(request, named, texts, whole=True, **more)
    runtime = serving.service.runtime
    n_tokens = await asyncio.to_thread(runtime.n_tokens, asked.model, texts)
    encoder = runtime.bundle.encoder()
    return form.whole([_cut(each, most, encoder) for each in answers if isinstance(each, TextAnswer)], n_tokens)


async def _schema(request: Request, asked: ChatRequest) -> Mapping[str, Any] | None:
    """Find what the answer is to keep to, if the request says it; the task's own where any object would do."""
    service, form = serving_of(request).service, asked.response_format
    if form is None or form.type == "text":
        return None
    own = service.manifest.task(asked.model).json_schema or {}
    given = ANY_OBJECT if form.json_schema is None else form.json_schema.schema_
    schema = own if form.json_schema is None and own.get("type") == "object" else given
    try:
        await asyncio.to_thread(service.runtime.generator.guide, asked.model, GREEDY, schema)
    except Unwritable as error:
        raise Refused(400, "invalid_schema", f"response_format: {error}") from error
    except MissingPackage as error:
        lacks = "response_format: this service has no grammars, for want of llguidance."
        raise Refused(501, "no_grammar", lacks) from error
    return schema


def _cut(answer: TextAnswer, most: int | None, encoder: TextEncoder) -> TextAnswer:
    """One that was written beside no other knows of no limit."""
    if most is None or len(answer.tokens) + answer.ended <= most:
        return answer
    tokens = answer.tokens[:most]
    return replace(answer, text=encoder.decode(tokens), tokens=tokens, ended=False)

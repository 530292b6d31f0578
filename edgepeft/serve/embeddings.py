"""``POST /v1/embeddings``, as OpenAI's clients ask: ``model`` is a task of the bundle that answers vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from edgepeft.common.errors import EdgepeftError, UnknownName
from edgepeft.common.messages import listed_mistakes
from edgepeft.data.answers import VectorPrediction
from edgepeft.runtime.runtime import RowResult
from edgepeft.serve.batcher import Closing, DeadlinePassed, QueueFull
from edgepeft.serve.problems import Json, Refused, explain, problem, refusal_of
from edgepeft.serve.routes import ASKED, FEW_ROWS, Endpoint, Serving, answers_of, body_of
from edgepeft.serve.schemas import Listed

__all__ = ["ENDPOINTS"]

_EXPECTED = (Refused, ValidationError, QueueFull, DeadlinePassed, Closing, EdgepeftError)
_OVERLOADED = 429


class EmbeddingsRequest(BaseModel):
    """One text or several; ``dimensions`` keeps the first numbers of each vector, of length 1 again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class EmbeddingBody(BaseModel):
    """One text's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read, those that begin and end a text among them."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """A vector for each text, in order."""

    object: Literal["list"]
    data: list[EmbeddingBody]
    model: str
    usage: Usage


async def embeddings(request: Request) -> Response:
    """A task's vectors of some texts, in OpenAI's form."""
    try:
        return await _embeddings(request)
    except _EXPECTED as error:
        # As OpenAI's clients read it: ``type`` and ``param`` beside message and code.
        refused, unknown = refusal_of(error), isinstance(error, UnknownName)
        param = "model" if unknown else refused.message.partition(":")[0]
        if isinstance(error, ValidationError):
            param = str(next((part for one in listed_mistakes(error)[:1] for part in one["loc"]), ""))
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        more: dict[str, Any] = {
            "type": "rate_limit_error" if refused.status == _OVERLOADED else kind,
            "param": param if param in EmbeddingsRequest.model_fields else None,
        }
        if unknown:
            refused = Refused(refused.status, "model_not_found", refused.message, refused.headers)
        return problem(refused, more)


async def _embeddings(request: Request) -> Response:
    serving: Serving = request.app.state.serving
    asked = await body_of(request, EmbeddingsRequest, serving.settings.limits.rows)
    kind = serving.service.manifest.task(asked.model).task_kind
    if not kind.gives_vectors:
        raise Refused(400, "no_embedding", f"model: task {asked.model} answers {kind.answers}, not vectors.")
    if asked.dimensions is not None and asked.dimensions > kind.n_outputs:
        raise Refused(400, "invalid", f"dimensions: the vectors of {asked.model} have {kind.n_outputs}.")
    for row, text in enumerate(asked.texts):
        if not text.strip():
            raise Refused(400, "empty_text", f"input: text {row} is empty.")
    texts = asked.texts
    answers = await answers_of(request, [asked.model] * len(texts), texts)
    for answer in answers:
        if isinstance(answer, EdgepeftError):
            raise answer
    n_tokens = await asyncio.to_thread(serving.service.runtime.n_tokens, asked.model, texts)
    if len(texts) <= FEW_ROWS:
        return _listed(asked, answers, n_tokens)
    return await serving.aside(_listed, asked, answers, n_tokens)


def _listed(asked: EmbeddingsRequest, answers: Sequence[RowResult], n_tokens: int) -> Json:
    data = []
    for index, answer in enumerate(answers):
        if isinstance(answer, EdgepeftError):
            raise explain(answer, asked.model)
        assert isinstance(answer, VectorPrediction), "the kind of the task was looked at"
        cut = answer.cut(asked.dimensions)
        packed = asked.encoding_format == "base64"
        shown = base64.b64encode(cut.vector.astype("<f4").tobytes()).decode("ascii") if packed else cut.value
        data.append({"object": "embedding", "index": index, "embedding": shown})
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Json({"object": "list", "data": data, "model": asked.model, "usage": usage})


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings,
        "Vectors of one text or several, as OpenAI's clients ask for them; the model is a task that answers vectors.",
        EmbeddingList,
        EmbeddingsRequest,
        refusals=ASKED,
    ),
)

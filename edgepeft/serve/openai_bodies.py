"""What OpenAI's clients send and are sent: the bodies of ``edgepeft.serve.openai``, with no logic."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgepeft.runtime.decoding import GREEDY
from edgepeft.serve.schemas import Asked, Listed


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

    @property
    def text(self) -> str:
        """Of all parts."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


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
        """The one."""
        return [message.text for message in self.messages]


class TextUsage(BaseModel):
    """Tokens that were read, and written, the one that ends a text too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


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


class Completion(BaseModel):
    """What was written for each prompt, in order."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TextUsage


class ChatCompletion(BaseModel):
    """What was written."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TextUsage


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

"""What a client can do to a service whose tasks write text: leave in mid-stream, prompts without end, schemas that take long."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from attacks import HEAD, HOLD_S, Attack, ask, at_once, connect, send

CHAT = HEAD.replace(b"/v1/predict", b"/v1/chat/completions")


def body(text: str = "one", **more: Any) -> bytes:
    return json.dumps({"model": "free", "messages": [{"role": "user", "content": text}], **more}).encode()


def _asked(content: bytes) -> bytes:
    return CHAT + b"Content-Length: %d\r\n\r\n%b" % (len(content), content)


def left_streams(port: int) -> None:
    """32 clients that leave after the first piece of a text, again and again."""

    def one() -> None:
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), connect(port) as connection:
                send(connection, _asked(body(stream=True)))
                connection.recv(256)

    at_once([one] * 32)


def left_before(port: int) -> None:
    """32 clients that leave before anything is answered, again and again."""

    def one() -> None:
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), connect(port) as connection:
                send(connection, _asked(body()))
            time.sleep(0.05)

    at_once([one] * 32)


def unread_streams(port: int) -> None:
    """64 streams that nobody reads."""

    def one() -> None:
        with contextlib.suppress(OSError), connect(port) as connection:
            send(connection, _asked(body(stream=True)))
            time.sleep(HOLD_S)

    at_once([one] * 64)


def long_prompts(port: int) -> None:
    """Prompts of 250,000 characters, sixteen at once."""
    at_once([lambda: ask(port, body("a b " * 62_500), CHAT)] * 16)


def many_texts(port: int) -> None:
    """More texts than are written at once, from 128 clients."""
    at_once([lambda: ask(port, body(), CHAT)] * 128)


def _schemas() -> Iterator[Any]:
    """Each takes something of a grammar: names, depth, references to itself, repetition, patterns that multiply."""
    yield {"type": "object", "properties": {f"name{i}": {"type": "string"} for i in range(1500)}}
    yield {"enum": [f"value {i}" for i in range(3000)]}
    nested: Any = {"type": "integer"}
    for _ in range(400):
        nested = {"type": "array", "items": nested, "minItems": 1}
    yield nested
    yield {"$ref": "#"}
    yield {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False}
    yield {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}
    yield {"type": "string", "minLength": 1_000_000, "maxLength": 1_000_001}
    yield {"type": "string", "pattern": "^(a|b|ab)*c(a|aa|aaa){1,200}$"}
    yield {"type": "string", "pattern": "^(.*a.{1,60}){1,30}$"}
    yield {"type": "string", "pattern": "".join(f"(x{{{i}}}|y*)" for i in range(1, 400))}
    yield {"anyOf": [{"type": "string", "pattern": f"^.*{i}.*{i + 1}.*$"} for i in range(300)]}
    yield {"allOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(40)]}


def schemas(port: int) -> None:
    """Grammars that take long, or much memory, to be read or followed; each four times at once."""
    for schema in _schemas():
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        content = body(response_format=form)
        at_once([lambda content=content: ask(port, content, CHAT)] * 4)  # type: ignore[misc]


def new_schemas(port: int) -> None:
    """A schema that nobody sent before with each request, from eight clients."""

    def one(client: int) -> None:
        until, n = time.monotonic() + HOLD_S, 0
        while time.monotonic() < until:
            schema = {"type": "object", "properties": {f"n{client}-{n}-{i}": {"type": "string"} for i in range(100)}}
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            ask(port, body(response_format=form, max_tokens=1), CHAT)
            n += 1

    at_once([lambda client=client: one(client) for client in range(8)])  # type: ignore[misc]


TEXT_ATTACKS: tuple[Attack, ...] = (
    left_streams,
    left_before,
    unread_streams,
    long_prompts,
    many_texts,
    schemas,
    new_schemas,
)

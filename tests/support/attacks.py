"""What a client can do to ``edgepeft serve`` over loopback; each attack is bounded in bytes, connections and seconds.

An attack takes the service's port and ends by itself.  What the service does to it (refuse, cut off, answer) is its own affair:
``attack.py`` looks at what it costs everybody else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from threading import Thread

MANY = 256  # connections at once: as many as the service takes
HOLD_S = 6.0  # that what waits is held
MIB = 1 << 20
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

Attack = Callable[[int], None]


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=2)
    connection.settimeout(HOLD_S)
    return connection


@contextlib.contextmanager
def many(port: int, count: int = MANY) -> Iterator[list[socket.socket]]:
    """Connections, as many of ``count`` as can be had."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(connect(port))
        yield opened
    finally:
        for each in opened:
            each.close()


def send(connection: socket.socket, content: bytes, times: int = 1) -> None:
    """Send it so often, or until the service has had enough."""
    with contextlib.suppress(OSError):
        for _ in range(times):
            connection.sendall(content)


def ask(port: int, body: bytes, head: bytes = HEAD) -> None:
    """One request, and its answer read to the end."""
    with contextlib.suppress(OSError), connect(port) as connection:
        connection.settimeout(30)
        send(connection, head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        while connection.recv(65536):
            pass


def at_once(calls: list[Callable[[], None]]) -> None:
    """Each in a thread of its own."""
    threads = [Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def hold(port: int, content: bytes, again: bytes = b"", every_s: float = 0.5, count: int = MANY) -> None:
    """Send ``content`` on many connections, then ``again`` ever so often on those that are left, and read nothing."""
    with many(port, count) as opened:
        for each in opened:
            each.setblocking(False)  # a full buffer must not hold the others up
            send(each, content)
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            time.sleep(every_s)
            for each in opened:
                send(each, again)


def nothing(port: int) -> None:
    """No attack: what the machine itself makes of the health checks."""
    time.sleep(HOLD_S)


def trailers(port: int) -> None:
    """60 MiB of small trailers."""
    with connect(port) as connection:
        send(connection, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        send(connection, b"".join(b"X-%05d: a\r\n" % i for i in range(5000)), 1000)


def one_trailer(port: int) -> None:
    """A trailer of 60 MiB."""
    with connect(port) as connection:
        send(connection, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ")
        send(connection, b"a" * MIB, 60)


def chunk_extension(port: int) -> None:
    """A chunk's extension of 60 MiB."""
    with connect(port) as connection:
        send(connection, HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=")
        send(connection, b"a" * MIB, 60)


def tiny_chunks(port: int) -> None:
    """32 bodies in chunks of one byte."""
    body = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * MIB

    def one() -> None:
        with contextlib.suppress(OSError), connect(port) as connection:
            send(connection, body)

    at_once([one] * 32)


def long_head(port: int) -> None:
    """32 heads of 8 MiB each."""

    def one() -> None:
        with contextlib.suppress(OSError), connect(port) as connection:
            send(connection, HEAD)
            send(connection, b"X: " + b"a" * 65000 + b"\r\n", 128)

    at_once([one] * 32)


def after_upgrade(port: int) -> None:
    """60 MiB behind a request to change the protocol."""
    with connect(port) as connection:
        send(connection, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        send(connection, b"a" * MIB, 60)


def pipelines(port: int) -> None:
    """Requests queued on 256 connections, whose answers nobody reads."""
    hold(port, b"", b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000, 0.2)


def unread(port: int) -> None:
    """Large answers on 256 connections that do not read them."""
    body = json.dumps({"rows": [{"text": "w5"}] * 64}).encode()
    hold(port, HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def idle(port: int) -> None:
    """512 connections that say nothing."""
    hold(port, b"", count=2 * MANY)


def slow_heads(port: int) -> None:
    """A byte of a head now and then, on 256 connections."""
    hold(port, b"GET /healthz HTTP/1.1\r\n", b"X")


def slow_bodies(port: int) -> None:
    """A byte of a body now and then, on 256 connections."""
    hold(port, HEAD + b"Content-Length: 1000\r\n\r\n", b" ")


def large_bodies(port: int) -> None:
    """Bodies of 1 MiB less a byte, held on 256 connections."""
    content = HEAD + b"Content-Length: %d\r\n\r\n" % MIB + b" " * (MIB - 1)

    def one() -> None:
        with contextlib.suppress(OSError), connect(port) as connection:
            send(connection, content)
            time.sleep(HOLD_S)

    at_once([one] * MANY)


def connections(port: int) -> None:
    """Connections opened and closed as fast as it goes, by four threads."""

    def one() -> None:
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connect(port).close()

    at_once([one] * 4)


def _bodies(port: int, body: bytes, head: bytes = HEAD) -> None:
    at_once([lambda: ask(port, body, head)] * 16)


def zeros(port: int) -> None:
    """A list of 524,000 zeros, sixteen times at once."""
    _bodies(port, b'{"rows":[' + b",".join([b"0"] * 524_000) + b"]}")


def empty_lists(port: int) -> None:
    """A list of 349,000 empty lists, sixteen times at once."""
    _bodies(port, b'{"rows":[' + b",".join([b"[]"] * 349_000) + b"]}")


def nested_lists(port: int) -> None:
    """5,200 lists nested a hundred deep, sixteen times at once."""
    _bodies(port, b"[" + b",".join([b"[" * 100 + b"]" * 100] * 5_200) + b"]")


def unknown_keys(port: int) -> None:
    """90,000 fields that are not known, sixteen times at once."""
    _bodies(port, b'{"text":"w5",' + b",".join(b'"a%d":0' % i for i in range(90_000)) + b"}")


def long_numbers(port: int) -> None:
    """Numbers of 4,299 digits, as many as fit."""
    _bodies(port, b'{"rows":[' + b",".join([b"9" * 4299] * 240) + b"]}")


def escapes(port: int) -> None:
    """A text of escapes and one of quotes, none of which ends."""
    _bodies(port, b'{"text":"' + b"\\u0041" * 170_000)
    _bodies(port, b'{"text":"' + b'\\"' * 500_000)


def _taught(port: int, label: bytes) -> None:
    """A row to tune on with that label, sixteen times at once."""
    _bodies(port, b'{"rows":[{"text":"w5","label":%b}]}' % label, HEAD.replace(b"/v1/predict", b"/v1/tasks/mood:tune"))


def label_of_objects(port: int) -> None:
    """A label of 99,001 empty objects."""
    _taught(port, b"[" + b",".join([b"{}"] * 99_001) + b"]")


def label_of_keys(port: int) -> None:
    """A label with 65,000 fields that are not known."""
    _taught(port, b"{" + b",".join(b'"a%d":0' % i for i in range(65_000)) + b"}")


def label_of_spans(port: int) -> None:
    """A label of 16,000 spans, the last of which is none."""
    span = b'{"start":0,"end":1,"label":"a"}'
    _taught(port, b"[" + b",".join([span] * 16_000) + b",{}]")


def rows_without_labels(port: int) -> None:
    """20,000 rows to tune on, each with a field that is not known."""
    _bodies(
        port,
        b'{"rows":[' + b",".join([b'{"text":"a","label":"b","x":0}'] * 20_000) + b"]}",
        HEAD.replace(b"/v1/predict", b"/v1/tasks/mood:tune"),
    )


def flood(port: int) -> None:
    """64 clients that ask one request after another."""

    def one() -> None:
        until = time.monotonic() + HOLD_S
        body = b'{"rows":[{"text":"w5 w6"}]}'
        with contextlib.suppress(OSError), connect(port) as connection:
            while time.monotonic() < until:
                connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
                if not connection.recv(65536):
                    return

    at_once([one] * 64)


ATTACKS: tuple[Attack, ...] = (
    nothing,
    trailers,
    one_trailer,
    chunk_extension,
    tiny_chunks,
    long_head,
    after_upgrade,
    pipelines,
    unread,
    idle,
    slow_heads,
    slow_bodies,
    large_bodies,
    connections,
    zeros,
    empty_lists,
    nested_lists,
    unknown_keys,
    long_numbers,
    escapes,
    label_of_objects,
    label_of_keys,
    label_of_spans,
    rows_without_labels,
    flood,
)

"""What uvicorn's protocol does not bound: each case sends more than is allowed and sees the connection end."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from attacks import HEAD, connect, send

from edgepeft.serve.server import HEALTH_RESERVE, Connections, Limited, address_of
from edgepeft.serve.settings import ServiceLimits

from .test_service import raw

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def status(answer):
    return int(answer.split(b" ", 2)[1])


def code(answer):
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (CHUNKED + b"2\r\n{}\r\n0\r\nX: y\r\n\r\n", (400, "trailers")),
        (CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"a" * 600_000, (431, "headers_too_large")),
        (CHUNKED + b"2;x=" + b"a" * 600_000, (431, "headers_too_large")),
        (CHUNKED + b"1\r\n \r\n" * 300, (413, "too_many_chunks")),
        (HEAD + b"X: y\r\n" * 200 + b"\r\n", (431, "headers_too_large")),
        (b"\x16\x03\x01\r\n\r\n", (400, "not_http")),
        (b"GET /healthz HTTP/1.0\r\n\r\n", (403, "wrong_host")),
    ],
)
def test_what_is_sent_beyond_a_bound_is_refused_with_its_name(served, sent, refusal):
    answer = raw(served.port, sent)
    if answer:  # where more is sent than is read, the kernel may throw the answer away
        assert (status(answer), code(answer)) == refusal
    assert answer or len(sent) > 100_000
    assert served.get("/healthz")[0] == 200


def test_a_body_in_large_chunks_is_read(served):
    body = json.dumps({"text": "w5 " * 6000}).encode()
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[i : i + 2000] for i in range(0, len(body), 2000)))
    head = HEAD.replace(b"/v1/predict", b"/v1/tasks/mood:predict") + b"Connection: close\r\n"
    assert status(raw(served.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n")) == 200


def test_a_few_queued_requests_are_answered_in_order_and_many_close_the_connection(served):
    with connect(served.port) as connection:
        send(connection, GET * 4)
        answers = b""
        while answers.count(b'{"status":"ok"}') < 4:
            piece = connection.recv(65536)
            assert piece
            answers += piece
    many = raw(served.port, GET * 2000)
    assert many.count(b"HTTP/1.1 200") <= 9


def test_a_client_that_sends_no_more_has_its_answers_and_then_the_connection_ends(served):
    """As `nc -N` does it: the sending half is closed with the last request."""
    with connect(served.port) as connection:
        send(connection, GET * 2)
        connection.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b'{"status":"ok"}') == 2


class Transport:
    """Keeps what would be done to a socket."""

    def __init__(self, unread=0):
        self.unread, self.aborted = unread, False

    def get_write_buffer_size(self):
        return self.unread

    def abort(self):
        self.aborted = True


def connection(since=0.0, *, at_work=False, unread=0):
    """One as ``Connections`` sees it: of a client that is waited for since then, or one that waits itself."""
    one = Limited.__new__(Limited)
    one._running = SimpleNamespace(response_complete=False, more_body=False) if at_work else None
    one.flow, one.transport = SimpleNamespace(write_paused=False), Transport(unread)
    one.waiting_since = one._read_at = one._head_since = since
    one._limits = ServiceLimits(read_s=3.0, write_s=5.0)
    return one


def test_the_connection_that_has_waited_longest_makes_room_and_none_that_is_at_work():
    limits = ServiceLimits(connections=2)
    table = Connections(limits)
    working = [connection(0.0, at_work=True) for _ in range(HEALTH_RESERVE)]
    early, late = connection(1.0), connection(2.0)
    assert all(table.admit(one, "127.0.0.1") for one in (*working, late, early))
    third = connection(3.0, at_work=True)
    assert table.admit(third, "127.0.0.1")
    assert (early.transport.aborted, late.transport.aborted) == (True, False)
    assert table.admit(connection(4.0, at_work=True), "127.0.0.1")
    refused = connection(5.0)
    assert not table.admit(refused, "127.0.0.1")
    assert not any(one.transport.aborted for one in (*working, third))
    assert len(table) == limits.connections + HEALTH_RESERVE


def test_an_address_has_its_share_and_takes_none_of_anothers():
    table = Connections(ServiceLimits(connections_per_address=2))
    other, first, second = connection(0.0), connection(1.0), connection(2.0)
    assert table.admit(other, "192.0.2.9")
    assert all(table.admit(one, "192.0.2.1") for one in (first, second))
    assert table.admit(connection(3.0), "192.0.2.1")
    assert (other.transport.aborted, first.transport.aborted, second.transport.aborted) == (False, True, False)


def test_where_all_are_taken_the_address_with_most_gives_one_up():
    table = Connections(ServiceLimits(connections=3 - HEALTH_RESERVE))
    lone, greedy = connection(0.0), [connection(1.0), connection(2.0)]
    assert table.admit(lone, "192.0.2.9")
    assert all(table.admit(one, "192.0.2.1") for one in greedy)
    assert table.admit(connection(3.0), "192.0.2.7")
    assert [one.transport.aborted for one in (lone, *greedy)] == [False, True, False]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("127.0.0.1", "::1", True),
    ],
)
def test_an_ipv6_host_counts_by_its_network_and_a_mapped_address_as_what_it_maps(one, other, same):
    assert (address_of(one) == address_of(other)) is same


def test_a_slow_head_and_an_answer_that_is_not_read_end_the_connection():
    table = Connections(ServiceLimits())
    slow, unread, quick = connection(0.0), connection(0.0, unread=9), connection(0.0)
    quick._head_since = None  # between two requests
    for one in (slow, unread, quick):
        table.admit(one, "127.0.0.1")
    table.sweep(2.9)
    assert len(table) == 3
    table.sweep(3.1)
    assert (slow.transport.aborted, unread.transport.aborted) == (True, False)
    table.sweep(5.1)
    assert (unread.transport.aborted, quick.transport.aborted, len(table)) == (True, False, 1)

"""Whatever a server sends and however slowly, a transfer ends: in bytes that follow from what is signed, and in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from tuf.api.exceptions import DownloadError, DownloadHTTPError

from edgepeft.common.errors import EdgepeftError
from edgepeft.fleet.fetcher import _AROUND_BYTES, Fetcher

WINDOW_S = 0.4
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MOST = 16_384  # of a timestamp, as tuf has it


def forever(piece, every_s=0.0):
    while True:
        yield piece
        time.sleep(every_s)


def dripped(text, every_s=0.05):
    for byte in text:
        yield bytes([byte])
        time.sleep(every_s)


SLOW = {
    "nothing": lambda: iter([]),
    "a byte of a head now and then": lambda: forever(b"H", 0.05),
    "interim answers": lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
    "fields of a head": lambda: iter([OK, *dripped(b"X: " + b"y" * 1000)]),
    "a byte of a body now and then": lambda: iter_of([OK + b"Content-Length: 1000\r\n\r\n"], forever(b"x", 0.05)),
    "a body without an end": lambda: iter_of([OK + b"\r\n"], forever(b"x", 0.05)),
    "chunks of a byte": lambda: iter_of([CHUNKED], forever(b"1\r\nx\r\n", 0.05)),
    "a chunk's size": lambda: iter_of([CHUNKED], forever(b"0", 0.05)),
    "a chunk's extension": lambda: iter_of([CHUNKED, b"1;"], forever(b"e", 0.05)),
    "the end of a chunk": lambda: iter_of([CHUNKED, b"1\r\nx"]),
    "the end of a body": lambda: iter_of([CHUNKED, b"1\r\nx\r\n0\r\n"]),
}
MUCH = {
    "interim answers": lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "interim heads": lambda: forever(b"HTTP/1.1 100 Continue\r\n" + b"X: " + b"y" * 60_000 + b"\r\n\r\n"),
    "a head": lambda: iter_of([OK], forever(b"X: " + b"y" * 60_000 + b"\r\n")),
    "a body": lambda: iter_of([OK + b"\r\n"], forever(bytes(60_000))),
    "a chunk's extension": lambda: iter_of([CHUNKED], forever(b"1;" + b"e" * 60_000 + b"\r\nx\r\n")),
    "chunks of a byte": lambda: iter_of([CHUNKED], forever(b"1\r\nx\r\n" * 9000)),
    "trailers": lambda: iter_of([CHUNKED, b"1\r\nx\r\n0\r\n"], forever(b"X: " + b"y" * 60_000 + b"\r\n")),
    "redirections": lambda: iter_of([b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n"], forever(bytes(60_000))),
    "a refusal": lambda: iter_of([b"HTTP/1.1 503 Later\r\nRetry-After: 9999\r\n\r\n"], forever(bytes(60_000))),
}


def iter_of(first, then=()):
    yield from first
    yield from then


@contextlib.contextmanager
def server(pieces):
    """An HTTP server that answers every connection so, and waits; ``sent`` are bytes."""
    sent, stop = [0], threading.Event()

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            for piece in pieces():
                if stop.is_set():
                    return
                connection.sendall(piece)
                sent[0] += len(piece)
            stop.wait(30)

    def listen():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A window of a part of a second, in which a thousand bytes and more are asked for."""
    monkeypatch.setattr("edgepeft.fleet.fetcher._WINDOW_S", WINDOW_S)
    monkeypatch.setattr("edgepeft.fleet.fetcher._MIN_BYTES_S", 3000.0)


def fetched(tmp_path, address, kind):
    """Seconds, and what was said, of a file of metadata or a target."""
    fetcher, began = Fetcher(tmp_path / "files", f"{address}/targets/"), time.monotonic()
    with pytest.raises(Exception) as caught, fetcher.download_file(f"{address}/{kind}/{'a' * 64}.x", MOST) as file:
        file.read()
    return time.monotonic() - began, str(caught.value)


@pytest.mark.parametrize("what", SLOW)
def test_what_comes_slowly_ends(what, tmp_path):
    with server(SLOW[what]) as (address, _):
        took, said = fetched(tmp_path, address, "metadata" if len(what) % 2 else "targets")
    assert "bytes came in 0.4 s" in said and took < 4 * WINDOW_S


@pytest.mark.parametrize("what", MUCH)
def test_what_has_no_end_ends(what, tmp_path):
    """Beyond what is signed, a constant and what the sockets' buffers hold are sent."""
    with server(MUCH[what]) as (address, sent):
        took, _ = fetched(tmp_path, address, "targets")
        assert took < 4 * WINDOW_S and sent[0] < 4 * (2 * MOST + _AROUND_BYTES) + (16 << 20)
    assert sum(path.stat().st_size for path in (tmp_path / "files").glob("*")) <= MOST


def test_a_server_that_is_overloaded_is_not_waited_for(tmp_path):
    with server(lambda: iter([b"HTTP/1.1 503 Later\r\nRetry-After: 9999\r\nContent-Length: 0\r\n\r\n"])) as (
        address,
        _,
    ):
        took, said = fetched(tmp_path, address, "metadata")
        assert took < 4 * WINDOW_S and said.endswith("HTTP status 503")
        with (
            pytest.raises(DownloadError) as caught,
            Fetcher(tmp_path, address).download_file(f"{address}/x.json", MOST),
        ):
            pass
    assert not isinstance(caught.value, DownloadHTTPError)  # which is of a file that is not there


def test_trailers_are_refused_however_few(tmp_path):
    with server(lambda: iter_of([CHUNKED, b"1\r\nx\r\n0\r\nX: y\r\n\r\n"])) as (address, _):
        assert "trailers" in fetched(tmp_path, address, "metadata")[1]


def test_chunks_are_read_and_a_fast_body_takes_as_long_as_it_needs(tmp_path):
    """Longer than the window, but never slower than the least."""

    def steadily():
        yield CHUNKED
        for _ in range(16):
            yield b"400;note=1\r\n" + b"x" * 1024 + b"\r\n"
            time.sleep(0.05)
        yield b"0\r\n\r\n"

    with server(steadily) as (address, _):
        fetcher = Fetcher(tmp_path / "files", f"{address}/targets/")
        with fetcher.download_file(f"{address}/metadata/x.json", MOST) as file:
            assert file.read() == b"x" * MOST


def test_a_pull_says_so_and_keeps_what_came(fleet, board, retrained):
    fleet.publish(retrained / "newer")
    fleet.served.faults["mood.onnx"] = lambda body, content: (
        body.write(content[:1000]),
        body.flush(),
        time.sleep(5 * WINDOW_S),
    )
    with pytest.raises(EdgepeftError, match="it comes too slowly"):
        fleet.pull(board)
    assert [path.stat().st_size for path in (board / ".fleet" / "files").iterdir()] == [1000]
    fleet.served.faults.clear()
    assert fleet.pull(board).taken == ("mood",)

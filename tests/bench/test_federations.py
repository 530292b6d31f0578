"""What federations are measured by: bytes at the wire, and what several splits say together."""

from __future__ import annotations

import socket
import threading

import pytest

from bench.averaging import split, summary
from bench.flower import Relay


def test_a_relay_counts_what_passes_in_either_direction_over_all_connections():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for _ in range(2):
                with server.accept()[0] as one:
                    while one.recv(1 << 16):
                        one.sendall(b"abc")

        threading.Thread(target=serve, daemon=True).start()
        relay = Relay(server.getsockname()[1])
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", relay.port)) as board:
                for n in (1, 1000):
                    board.sendall(bytes(n))
                    assert board.recv(3, socket.MSG_WAITALL) == b"abc"
        assert (relay.up >= 2 * 1001, relay.down) == (True, 12)
        relay.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", relay.port), 1)


@pytest.mark.parametrize("skew", [None, 0.5])
def test_a_split_gives_each_row_to_one_board(skew):
    rows = [{"sentence1": str(i), "label": "ab"[i % 3 == 0]} for i in range(90)]
    parts = split(rows, 4, skew, 0)
    assert sorted(int(row["sentence1"]) for part in parts for row in part) == list(range(90))
    even = all(sum(row["label"] == "b" for row in part) in (7, 8) for part in parts)
    assert even == (skew is None)


def test_ways_are_compared_seed_by_seed():
    def line(seed, way, score):
        return {"seed": seed, "way": way, "score": score}

    done = [line(0, "mean", 0.7), line(1, "mean", 0.8), line(0, "central", 0.71), line(1, "central", 0.79)]
    found = summary([*done, line(2, "central", 0.1)])  # no mean of that seed yet
    assert found["mean"]["mean"] == pytest.approx(0.75) and found["mean above central"]["mean"] == pytest.approx(0)
    assert found["mean above central"]["deviation"] == pytest.approx(0.02 / 2**0.5)

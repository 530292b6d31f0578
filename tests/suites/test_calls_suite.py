"""What a call costs beside the session: all sides answer, each in every round."""

from __future__ import annotations

import pytest

from bench.suites import calls
from edgepeft.common.errors import EdgepeftError

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def run(tiny_run):
    return tiny_run("bert", rounds=1, max_position_embeddings=128)


def test_each_call_is_timed_beside_the_session_in_every_round(run):
    rows = list(calls.measure(run))
    assert [row.target.value for row in rows] == [0.06, 0.15, 0.5] * 3
    for row in rows:
        (session, own) = (row.samples[side] for side in ("session", row.what.partition(" of ")[0]))
        assert len(session) == len(own) == 10 and min(own) > 0
        low, high = row.interval
        assert low <= row.value <= high and row.unit == "ms"
    served = [row.value for row in rows if row.what.startswith("edgepeft serve")]
    assert min(served) > 0  # two sockets and a thread


def test_sides_that_answer_differently_are_not_timed(run, monkeypatch):
    asked = calls._asked
    monkeypatch.setattr(calls, "_asked", lambda connection, text: asked(connection, text).replace(b"0.5", b"0.6"))
    with pytest.raises(EdgepeftError, match="edgepeft serve are"):
        next(iter(calls.measure(run)))

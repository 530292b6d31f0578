"""What a call costs beside the session: ``Runtime.logits``, ``Runtime.predict``, a request to ``edgepeft serve``.

All answer one text by the same graph, in turn, in a new order each round, once no thread of the one before runs: a
call after a pause, as a board's are.  They run outside of the profile's limits.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, require_close
from bench.suites._suite_run import SuiteRun
from edgepeft.backbones.tokens import Text
from edgepeft.bench.measuring.measure import wait_for_rest
from edgepeft.bench.measuring.sampler import round_orders
from edgepeft.bench.planning.target import texts_of
from edgepeft.bench.result.statistics import interval_of
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import EdgepeftError
from edgepeft.graph.names import LOGITS
from edgepeft.graph.one_row import for_one_row
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session_pool import SessionPool
from edgepeft.tasks._answers import Prediction

TITLE = "A call beside the session alone"
ARCHITECTURE = "all-MiniLM-L6-v2"

_TASK = "task"
_LENGTHS = (8, 32, 128)
_SESSION, _SERVE = "session", "edgepeft serve"
_MAX_MS = {"Runtime.logits": 0.06, "Runtime.predict": 0.15, _SERVE: 0.5}
_ROUNDS = 10  # for each round that is asked for: a call takes a few milliseconds
_RESAMPLES = 2000


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Milliseconds of each call beyond the session's, by length."""
    folder = run.bundle("one-task", [Structure("pfeiffer", [_TASK])])
    with ExitStack() as stack:
        runtime = stack.enter_context(Runtime(folder, threads=run.threads))
        weights = SessionPool(Bundle(folder), cache=True, threads=run.threads)
        stack.callback(weights.close)
        weights.prepare()
        graph = weights.bundle.graph(_TASK)
        for_one_row(graph)
        session = weights.open(graph)
        server, ask = stack.enter_context(_served(folder, run.threads))
        encoder = weights.bundle.encoder()
        for length, text in zip(_LENGTHS, texts_of(_LENGTHS, seed=run.seed), strict=True):
            inputs = encoder.encode([Text(text)], length).inputs
            feeds = {each.name: inputs[each.name] for each in session.get_inputs()}
            _require_one_answer(session.run([LOGITS], feeds)[0], runtime.predict(_TASK, text)[0], ask(text))
            calls: dict[str, Callable[[], object]] = {
                _SESSION: partial(session.run, [LOGITS], feeds),
                "Runtime.logits": partial(runtime.logits, _TASK, inputs),
                "Runtime.predict": partial(runtime.predict, _TASK, text),
                _SERVE: partial(ask, text),
            }
            seconds = _in_turn(run, f"{length} tokens", calls, (os.getpid(), server))
            for name, most in _MAX_MS.items():
                yield _beyond(f"{name} of {length} tokens, beyond the session", seconds, name, most)


def _require_one_answer(logits: NDArray[np.float32], predicted: Prediction, served: bytes) -> None:
    """See that all sides answer the text alike."""
    scores = json.loads(served)["predictions"][0]["scores"]
    require_close("the session", "Runtime.predict", float(np.abs(logits[0] - predicted.logits).max()))
    require_close("Runtime.predict", _SERVE, max(abs(scores[name] - p) for name, p in predicted.scores.items()))


def _in_turn(
    run: SuiteRun, what: str, calls: Mapping[str, Callable[[], object]], processes: Iterable[int]
) -> dict[str, list[float]]:
    """Seconds of each call, by its name; ``processes`` are those that answer."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    rounds, until = _ROUNDS * run.rounds, time.monotonic() + run.max_seconds
    for done, order in enumerate(round_orders(list(calls), rounds, run.seed)):
        if time.monotonic() > until:
            break
        run.progress(what, done, rounds)
        for name in order:
            for pid in processes:
                wait_for_rest(pid)
            began = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def _beyond(what: str, seconds: Mapping[str, Sequence[float]], name: str, most: float) -> SuiteRow:
    """The median of the paired differences in milliseconds, with a bootstrap interval."""
    beyond = 1e3 * (np.array(seconds[name]) - np.array(seconds[_SESSION]))
    drawn = np.median(np.random.default_rng(0).choice(beyond, (_RESAMPLES, len(beyond))), axis=1)
    note = f"the session takes {1e3 * np.median(seconds[_SESSION]):.2f} ms"
    samples = {each: seconds[each] for each in (_SESSION, name)}
    target = Target(most, at_least=False)
    return SuiteRow(what, None, float(np.median(beyond)), interval_of(drawn), "ms", target, samples, note)


@contextmanager
def _served(bundle: Path, threads: int) -> Iterator[tuple[int, Callable[[str], bytes]]]:
    """A service of the bundle in a process of its own: its number, and how it is asked over one connection."""
    command = [sys.executable, "-m", "edgepeft", "serve", str(bundle), "--port", "0", "--threads", str(threads)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            said = iter(process.stderr or ())
            port = next((found[1] for line in said if (found := re.search(r"on http://\S+?:(\d+)", line))), None)
            if port is None:
                raise EdgepeftError(f"edgepeft serve ended with {process.wait()} before it listened.")
            with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield process.pid, partial(_asked, connection)
        finally:
            process.terminate()


def _asked(connection: socket.socket, text: str) -> bytes:
    """The answer's body; a client as lean as one can be, for its time counts."""
    body = json.dumps({"text": text}).encode()
    head = b"POST /v1/tasks/%b:predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(head % _TASK.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    read, end, size = b"", -1, 0
    while end < 0 or len(read) < end + 4 + size:
        if not (more := connection.recv(1 << 16)):
            raise EdgepeftError("edgepeft serve closed the connection.")
        read += more
        if end < 0 <= (end := read.find(b"\r\n\r\n")):
            size = int(re.search(rb"(?i)content-length: *(\d+)", read)[1])  # type: ignore[index]
    if not read.startswith(b"HTTP/1.1 200"):
        raise EdgepeftError(f"edgepeft serve answered {read[:200]!r}.")
    return read[end + 4 :]

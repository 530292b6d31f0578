"""A service under load over loopback: throughput and latency beside the offline runtime, then twice what it can carry.

    python tests/support/load.py BUNDLE --minutes 30

Every answer is checked against the offline prediction for its own text and task.  Prints one JSON document; exit 1 where an
answer was lost or mixed up, or memory at the end is more than 5 % over that after two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from service import start

from edgepeft.common.errors import EdgepeftError
from edgepeft.runtime.runtime import Runtime

TOLERANCE = 2e-3  # of a probability: rows of other requests run beside it, and the served one may be on int8
CLIENTS = 16
TURNS = 7
WORDS = "the a we they soup street evening rain prize match goal bank market song film laughed fell won said over cold".split()  # noqa: SIM905


class Connection:
    """Keep-alive HTTP/1.1, as little of it as the service speaks: a client must not take the service's cores."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.reader is not None and self.reader.at_eof():  # the service closes what was idle for long
            self.close()
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
        answer = await self.reader.readexactly(length)
        if b"connection: close" in head.lower():
            self.close()
        return int(head[9:12]), answer

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
            self.reader = None


class Load:
    """Texts with their offline answers, and what came of asking for them."""

    def __init__(self, port: int, cases: list[tuple[str, str, Any]]) -> None:
        self.port, self.cases = port, cases
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.latencies: list[float] = []
        self.answers: list[tuple[tuple[str, str, Any], bytes]] = []

    async def ask(self, connection: Connection, case: tuple[str, str, Any]) -> int:
        """Ask and keep the answer for ``check``, whose time must not be the service's."""
        task, text, _ = case
        begin = time.perf_counter()
        try:
            status, body = await connection.post(f"/v1/tasks/{task}:predict", json.dumps({"text": text}).encode())
        except (OSError, asyncio.IncompleteReadError) as error:
            self.counts[f"lost: {type(error).__name__}"] += 1
            connection.close()
            return 0
        self.latencies.append(time.perf_counter() - begin)
        self.counts[str(status)] += 1
        if status == 200:
            self.answers.append((case, body))
        return status

    def check(self) -> None:
        """Compare every answer with the offline one."""
        for (task, text, expected), body in self.answers:
            found = json.loads(body)["predictions"][0]
            scores = found.get("scores") or {"value": found["value"]}
            wanted = expected.scores or {"value": expected.score}
            if found["task"] != task or max(abs(scores[k] - wanted[k]) for k in wanted) > TOLERANCE:
                self.wrong.append(f"{task}: {text[:60]}: {found} in place of {expected}")
        self.answers.clear()

    async def closed_loop(self, clients: int, seconds: float, seed: int = 0) -> float:
        """Each client asks again when it has its answer; answers per second."""
        until = time.monotonic() + seconds
        answered = 0

        async def client(number: int) -> None:
            nonlocal answered
            source, connection = random.Random(seed + number), Connection(self.port)
            while time.monotonic() < until:
                status = await self.ask(connection, source.choice(self.cases))
                answered += status == 200  # not in one line: the count would be read before the answer is awaited
            connection.close()

        begin = time.monotonic()
        await asyncio.gather(*(client(i) for i in range(clients)))
        took = time.monotonic() - begin
        self.check()
        return answered / took

    async def open_loop(self, rate: float, seconds: float, watch: Any) -> None:
        """Requests come at ``rate`` a second, whatever becomes of those before."""
        source = random.Random(1)
        idle = [Connection(self.port) for _ in range(200)]
        running: set[asyncio.Task[None]] = set()

        async def one(connection: Connection, case: tuple[str, str, Any]) -> None:
            await self.ask(connection, case)
            idle.append(connection)

        begin = time.monotonic()
        sent = 0
        while (now := time.monotonic() - begin) < seconds:
            while sent < now * rate:
                sent += 1
                if idle:
                    task = asyncio.create_task(one(idle.pop(), source.choice(self.cases)))
                    running.add(task)
                    task.add_done_callback(running.discard)
                else:
                    self.counts["not sent: 200 under way"] += 1
            watch(now)
            self.check()
            await asyncio.sleep(0.005)
        await asyncio.gather(*running)
        self.check()


class Offline:
    """The same rows in this process, without a service."""

    def __init__(self, runtime: Runtime, seed: int = 0) -> None:
        self.runtime, source = runtime, random.Random(seed)
        tasks = [task for task in runtime.tasks if not runtime.bundle.entry(task).pairs]
        self.texts = [" ".join(source.choices(WORDS, k=source.randrange(3, 40))) for _ in range(512)]
        self.tasks = [source.choice(tasks) for _ in self.texts]
        self.rates: list[float] = []
        self.singles: list[float] = []

    def answers(self) -> list[Any]:
        """Of all rows in batches of 32; their rate is kept."""
        begin = time.perf_counter()
        starts = range(0, len(self.texts), 32)
        found = [self.runtime.predict_mixed(self.tasks[i : i + 32], self.texts[i : i + 32]) for i in starts]
        self.rates.append(len(self.texts) / (time.perf_counter() - begin))
        return [answer for batch in found for answer in batch]

    def single(self) -> float:
        """Median seconds of a single row."""
        for task, text in zip(self.tasks[:200], self.texts[:200], strict=True):
            begin = time.perf_counter()
            self.runtime.predict(task, [text])
            self.singles.append(time.perf_counter() - begin)
        return median(self.singles[-200:])


async def measure(load: Load, process: psutil.Process, offline: Offline, minutes: float) -> dict[str, Any]:
    """Offline and served in turns, then the overload."""
    await load.closed_loop(CLIENTS, 5)
    rates, added, client_s = [], [], 0.0
    offline.rates.clear()
    for turn in range(TURNS):
        offline.answers()
        client_began = sum(psutil.Process().cpu_times()[:2])
        rates.append(await load.closed_loop(CLIENTS, 5, seed=turn))
        client_s += sum(psutil.Process().cpu_times()[:2]) - client_began
        load.latencies.clear()
        alone = offline.single()
        await load.closed_loop(1, 2)
        added.append(1000 * (median(load.latencies) - alone))
    load.counts.clear()
    load.latencies.clear()
    memory: list[tuple[float, int]] = []

    def watch(now: float) -> None:
        if not memory or now - memory[-1][0] >= 5:
            memory.append((now, process.memory_info().rss))

    capacity = median(rates)
    if minutes:
        await load.open_loop(2 * capacity, 60 * minutes, watch)
    early = [rss for at, rss in memory if at >= min(120, 30 * minutes)][:3]
    return {
        "offline_rows_per_s": offline.rates,
        "served_rows_per_s": rates,
        "served_over_offline": median(s / o for s, o in zip(rates, offline.rates, strict=True)),
        "client_cores": client_s / (5 * TURNS),
        "added_latency_p50_ms": median(added),
        "overload": {
            "minutes": minutes,
            "asked_per_s": 2 * capacity,
            "outcomes": dict(load.counts),
            "answered_p50_s": median(load.latencies) if load.latencies else None,
            "memory_after_2_min_mb": round(median(early) / 2**20, 1) if early else None,
            "memory_at_the_end_mb": round(median([rss for _, rss in memory][-3:]) / 2**20, 1) if memory else None,
        },
        "mixed_up": len(load.wrong),
        "examples": load.wrong[:5],
    }


def main() -> None:
    """Offline first, then the service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    try:
        runtime = Runtime(asked.bundle, threads=asked.threads)
    except EdgepeftError as error:
        parser.error(str(error))
    with runtime:
        offline = Offline(runtime)
        cases = list(zip(offline.tasks, offline.texts, offline.answers(), strict=True))
        log = Path(tempfile.mkstemp(prefix="edgepeft-serve.")[1])
        threads = [] if asked.threads is None else ["--threads", str(asked.threads)]
        process, address = start(asked.bundle, log, ["--queue", "128", "--workers", str(asked.workers), *threads])
        print(f"the service's log: {log}", file=sys.stderr)
        try:
            load = Load(int(address.rpartition(":")[2]), cases)
            found = asyncio.run(measure(load, psutil.Process(process.pid), offline, asked.minutes))
        finally:
            process.terminate()
            code = process.wait(60)
    found["exit_code"] = code
    print(json.dumps(found, indent=2))
    overload = found["overload"]
    lost = sum(n for outcome, n in overload["outcomes"].items() if outcome.startswith("lost"))
    before, after = overload["memory_after_2_min_mb"], overload["memory_at_the_end_mb"]
    grown = before is not None and after > 1.05 * before
    sys.exit(1 if lost or found["mixed_up"] or grown or code else 0)


if __name__ == "__main__":
    main()

"""A service as a user has it: a process of its own, asked over loopback by http.client."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from verbs import ENTRY


class Client:
    """One connection at a time; answers are (status, headers, document)."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port, self.token = port, token

    def ask(self, method, path, body=None, headers=None, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = {} if body is None else {"Content-Type": "application/json"}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, content, sent | (headers or {}))
            answer = connection.getresponse()
            read = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, dict(answer.headers), json.loads(read) if kind.startswith("application/json") else read

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def predict(self, task, body, **more):
        return self.post(f"/v1/tasks/{task}:predict", body, **more)


class Served(Client):
    """A running ``edgepeft serve``."""

    def __init__(self, process, log: Path, port: int, token: str | None) -> None:
        super().__init__(port, token)
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition, seconds=20):
        until = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(bundle, folder: Path, *options, token=None, entry=ENTRY):
    """Start it on a free port, wait until it is ready, and stop it."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-c", entry, "serve", str(bundle), "--port", "0", *map(str, options)]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "500"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            found = None
            until = time.monotonic() + 60
            while found is None:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.02)
                found = re.search(r"on http://\S+?:(\d+)\n", log.read_text())
            served = Served(process, log, int(found.group(1)), token)
            served.wait_for(lambda: answers_ready(served), 60)
            yield served
        finally:
            if process.poll() is None:
                process.kill()


def answers_ready(served) -> bool:
    try:
        return served.get("/readyz")[0] == 200
    except OSError:
        return False

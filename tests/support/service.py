"""``edgepeft serve`` in a process of its own, for the commands that ask it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ENTRY = "import sys; from edgepeft.cli._main import main; main()"


def start(
    bundle: Path,
    log: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    until: str = "ready, with",
    entry: str = ENTRY,
) -> tuple[subprocess.Popen[bytes], str]:
    """The process once ``until`` stands in its log, which goes to ``log``; and its address."""
    with log.open("w") as out:  # a pipe that is not read would stop the service
        command = [sys.executable, "-c", entry, "serve", str(bundle), "--port", "0", *options]
        process = subprocess.Popen(command, stderr=out, env=environment)
    while True:
        written = log.read_text()
        address = re.search(r"on (http://\S+:\d+)\n", written)
        if address is not None and until in written:
            return process, address[1]
        if process.poll() is not None:
            raise SystemExit(f"the service did not start: {written}")
        time.sleep(0.1)


@contextlib.contextmanager
def started(
    bundle: Path, log: Path, options: Sequence[str] = (), entry: str = ENTRY
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """As ``start``, once it listens; killed at the end."""
    process, address = start(bundle, log, options, until="serving ", entry=entry)
    try:
        yield process, address
    finally:
        process.kill()
        process.wait()

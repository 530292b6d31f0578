"""``edgepeft serve`` in a process of its own, for the commands that ask it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(
    bundle: Path, log: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """The process once it is ready, and its address; what it says goes to ``log``."""
    entry = "import sys; from edgepeft.cli._main import main; main()"
    with log.open("w") as out:  # a pipe that nobody reads would stop the service
        command = [sys.executable, "-c", entry, "serve", str(bundle), "--port", "0", *options]
        process = subprocess.Popen(command, stderr=out, env=environment)
    while "ready, with" not in (told := log.read_text()):
        if process.poll() is not None:
            raise SystemExit(f"the service did not start: {told}")
        time.sleep(0.1)
    found = re.search(r"on (http://\S+:\d+)\n", told)
    assert found is not None
    return process, found[1]

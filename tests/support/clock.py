"""A wall clock that jumps by years, back and forth, ten times a second, as on a board without a battery that hears of the time late.

    apt-get install libfaketime
    python tests/support/clock.py --requests 300

Adding, removing, tuning and cache building must do their work and leave the bundle whole, and a service must answer every
request as the offline runtime does.  The monotonic clock does not jump: it never does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kills import OPERATIONS, check, prepare_spare
from service import start
from subject import subject

from edgepeft.bundle.manifest import Manifest
from edgepeft.runtime.runtime import Runtime

YEARS = 20
_CHILD = "import sys; from pathlib import Path; from kills import OPERATIONS; OPERATIONS[sys.argv[1]](*map(Path, sys.argv[2:]))"


class Jumps:
    """Writes another offset into the file that libfaketime reads, ten times a second."""

    def __init__(self, file: Path) -> None:
        self.file, self.count, self.stopped = file, 0, threading.Event()
        self.thread = threading.Thread(target=self._jump, daemon=True)

    def __enter__(self) -> Jumps:
        self._write(0)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _jump(self) -> None:
        source = random.Random(0)
        while not self.stopped.wait(0.1):
            self._write(source.uniform(-YEARS, YEARS))
            self.count += 1

    def _write(self, years: float) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"{years * 365 * 86400:+.0f}\n")
        new.replace(self.file)


def faked(file: Path) -> dict[str, str]:
    """The environment of a process whose wall clock the file moves.

    Raises:
        SystemExit: libfaketime is not installed.
    """
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise SystemExit("libfaketime is not installed: apt-get install libfaketime")
    told = {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    return {**os.environ, "LD_PRELOAD": str(found[0]), "PYTHONPATH": path, **told}


def operation(name: str, sound: Path, spare: Path, folder: Path, environment: dict[str, str]) -> str | None:
    """What went wrong, if anything."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    bundle = Path(shutil.copytree(sound, folder / "bundle"))
    before = Manifest.read(bundle)
    command = [sys.executable, "-c", _CHILD, name, str(bundle), str(spare)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1][:300]}"
    return check(name, bundle, before)


def served(bundle: Path, log: Path, environment: dict[str, str], requests: int) -> dict[str, Any]:
    """Every request answered as offline, and an end by SIGTERM."""
    texts = [f"w{5 + i % 50} w{6 + i % 40}" for i in range(requests)]
    with Runtime(bundle, cache=False, threads=1) as runtime:
        expected = [answer.scores for answer in runtime.predict("mood", texts)]
    process, address = start(bundle, log, ["--no-cache"], environment)
    wrong = []
    try:
        for text, scores in zip(texts, expected, strict=True):
            asked = urllib.request.Request(
                f"{address}/v1/tasks/mood:predict",
                json.dumps({"text": text}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                found = json.load(answer)["predictions"][0]["scores"]
            if scores is None or max(abs(found[label] - scores[label]) for label in scores) > 1e-4:
                wrong.append(f"{text}: {found} in place of {scores}")
    finally:
        process.terminate()
        code = process.wait(60)
    return {"requests": requests, "wrong": wrong, "exit_code": code}


def main() -> None:
    """Prints one JSON document; exit 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-clock."))
    environment = faked(folder / "offset")
    sound = subject(folder / "subject")
    spare = prepare_spare(sound)
    with Jumps(folder / "offset") as jumps:
        found = {name: operation(name, sound, spare, folder / "trial", environment) for name in OPERATIONS}
        service = served(sound, folder / "serve.log", environment, asked.requests)
    print(json.dumps({"jumps": jumps.count, "years": YEARS, "operations": found, "service": service}, indent=2))
    sys.exit(1 if any(found.values()) or service["wrong"] or service["exit_code"] else 0)


if __name__ == "__main__":
    main()

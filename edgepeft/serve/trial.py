"""Opening a task and asking it for one answer, in a process of its own: what dies or hangs there is that task's error.

A graph or a tokenizer from elsewhere reaches ONNX Runtime's and other native code, which can abort or run for ever.  So
the service opens only what a process like this one came through.  Tasks that answered are remembered by the hashes of
all that was run, in the cache, and are not tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.common.resources import cache_folder, file_identity, private_folder
from edgepeft.common.task_name import GRAPH
from edgepeft.runtime.runtime import Runtime

__all__ = ["Trials"]

TRIAL_S = 120.0  # of one task; the first of a backbone packs its weights, which takes a board half a minute
_MOST_KEPT = 4096
_ANSWERED, _REFUSED = "answered", "refused"


class Trials:
    """Which tasks of a bundle may be opened within this process; None is the bare backbone."""

    def __init__(self, folder: Path, threads: int | None, seconds: float = TRIAL_S) -> None:
        self.command = [sys.executable, "-m", __name__, str(folder), str(threads or 0)]
        self._seconds = seconds
        self._answered = _read()  # by the hashes of all that was run
        self._other: dict[str, str] = {}  # by hashes and the file's identity: how it ended the process, "" for an error
        self._one_at_a_time = threading.Lock()

    def problems(self, bundle: Bundle, tasks: Iterable[str | None]) -> dict[str | None, BundleError]:
        """Those of the tasks that end the process that opens them; tries the ones that were not tried before.

        A task that is merely refused there is none of them: opening it here is an error too, and says which.
        """
        known = [task for task in dict.fromkeys(tasks) if task is None or task in bundle.manifest.tasks]
        keys = {task: key for task in known if (key := _key(bundle, task)) not in self._answered}
        if not keys:
            return {}
        keyed = {task: (key, f"{key} {_identity(bundle, task)}") for task, key in keys.items()}
        with self._one_at_a_time:
            self._try({task: both for task, both in keyed.items() if both[1] not in self._other})
        ended = {task: why for task, (_, other) in keyed.items() if (why := self._other.get(other))}
        return {task: BundleError(f"{_name(task)} cannot be run: opening it {why}") for task, why in ended.items()}

    def _try(self, keys: Mapping[str | None, tuple[str, str]]) -> None:
        remaining = [task for task, (key, _) in keys.items() if key not in self._answered]
        before = len(self._answered)
        while remaining:
            for task, outcome in self._outcomes(tuple(remaining)):
                remaining.remove(task)
                key, other = keys[task]
                if outcome == _ANSWERED:
                    self._answered.add(key)
                else:
                    self._other[other] = "" if outcome == _REFUSED else outcome
        if len(self._answered) > before:
            with contextlib.suppress(OSError, EdgepeftError):
                write_json(_kept(), [*sorted(_read() - self._answered), *sorted(self._answered)][-_MOST_KEPT:])

    def _outcomes(self, tasks: tuple[str | None, ...]) -> Iterator[tuple[str | None, str]]:
        """Each task and how it ended, in order, until one ends the process."""
        with subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(tasks))
                    process.stdin.close()
                for task in tasks:
                    line = lines.get(timeout=self._seconds).strip()
                    yield task, line or f"ended a process of its own ({_how(process.wait())})."
                    if not line:
                        return
            except queue.Empty:
                yield task, f"did not end within {self._seconds:g} s."
            finally:
                process.kill()


def _forward(lines: Iterable[str], to: queue.Queue[str]) -> None:
    """Put each line, and at their end an empty one."""
    for line in lines:
        to.put(line)
    to.put("")


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def _name(task: str | None) -> str:
    return "the bare backbone" if task is None else f"task {task}"


def _key(bundle: Bundle, task: str | None) -> str:
    """Of all that is run for the task, and of what runs it."""
    backbone = bundle.manifest.backbone
    parts = [metadata.version("onnxruntime"), backbone.sha256.graph, backbone.sha256.weights]
    parts += [bundle.manifest.files.get("tokenizer.json", ""), bundle.manifest.files.get("config.json", "")]
    parts += [] if backbone.text is None else [backbone.text.encoder, backbone.text.decoder]
    parts += [] if task is None else [bundle.manifest.tasks[task].sha256, str(bundle.manifest.tasks[task].max_length)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _identity(bundle: Bundle, task: str | None) -> str:
    try:
        return "" if task is None else file_identity(bundle.current(task, GRAPH))
    except OSError:
        return ""


def _kept() -> Path:
    return private_folder(cache_folder() / "opened") / "passed.json"


def _read() -> set[str]:
    try:
        return {str(key) for key in json.loads(_kept().read_bytes())}
    except (OSError, EdgepeftError, ValueError, TypeError):
        return set()


def _main() -> None:
    """Open the tasks that standard input names, one after another; print how each ended."""
    folder, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints goes to the log
    tasks = json.load(sys.stdin)
    with Runtime(Path(folder), threads=int(threads) or None) as runtime:
        for task in tasks:
            print(_outcome(runtime, task), file=answers, flush=True)


def _outcome(runtime: Runtime, task: str | None) -> str:
    try:
        entry = None if task is None else runtime.bundle.entry(task)
        runtime.predict_mixed([task], ["a" if entry is None else entry.task_kind.readable(pairs=entry.pairs)])
    except Exception:  # whatever a file from elsewhere makes of the libraries that read it: the service will see it too
        return _REFUSED
    return _ANSWERED


if __name__ == "__main__":
    _main()

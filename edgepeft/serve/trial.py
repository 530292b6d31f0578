"""Opening a task and asking it for one answer, in a process of its own: what dies or hangs there is that task's error.

A graph or a tokenizer from elsewhere reaches ONNX Runtime's and other native code, which can abort or run for ever.  So
the service opens only what a process like this one came through.  Tasks that answered are remembered by the hashes of
all that was run, in the cache, and are not tried again.

Two tasks are tried beside each other, each within a budget of processor time and memory.  What waits for a disk or a
memory card costs neither, and the bare backbone, which is opened first and packs its weights, is the measure: a
task may cost a few times as much, so that a slow board tries honest tasks as a quick one does.  Every task has a short
turn first; what needs more has its second, longer one after all others, with the lowest priority.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import heapq
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.common.resources import cache_folder, file_identity, private_folder
from edgepeft.common.task_name import GRAPH
from edgepeft.device.machine import memory_bytes, thread_count
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.prepacked import hold_prepacked
from edgepeft.runtime.runtime import Runtime

_BESIDE = 2  # at once
_TURNS = ((0.2, 3), (1.0, 10))  # shares of the budget, and times the backbone's: whichever is more
_MEMORY = 0.5  # of what there is, for all that are tried at once
_HANGS_S, _BACKBONE_S = 120.0, 600.0  # on the clock: what sleeps takes no processor time; a board packs for a minute
_TOKENS = 4  # of a text that is written: the first steps are like all others
_MAX_KEPT = 4096
_ANSWERED, _REFUSED, _HUNGRY, _SLOW, _OTHER = "answered", "refused", "hungry", "slow", "another version"
_STARVED = re.compile("alloc|new thread|Resource temporarily")  # of what ONNX Runtime and Python say without memory
_PR_SET_PDEATHSIG = 1


class Untried(BundleError):
    """A task whose trial has not ended yet."""


class _Tried(NamedTuple):
    """A turn of a task; heaps have the first turns in front."""

    turn: int
    number: int
    task: str | None
    key: str
    other: str


class Trials:
    """Which tasks of a bundle may be opened within this process; None is the bare backbone."""

    def __init__(self, folder: Path, threads: int | None, budget_s: float) -> None:
        self.command = [sys.executable, "-m", __name__, str(folder), str(threads or 0), str(budget_s)]
        self._budget_s = budget_s
        self._answered = _read()  # by the hashes of all that was run
        self._other: dict[str, str] = {}  # by hashes and the file's identity: why it may not be opened, "" for an error
        self._keys: tuple[Bundle | None, dict[str | None, str]] = (None, {})  # of the bundle that was last asked for
        self._changed = threading.Condition()  # of everything below
        self._waiting: list[_Tried] = []
        self._asked: set[str] = set()  # what waits or is under way
        self._numbers = itertools.count()
        self._processes: set[_Process] = set()
        self._threads: list[threading.Thread] = []
        self._opened_at: float | None = None  # when a backbone had answered
        self._closed = False

    def untried(self, bundle: Bundle, task: str | None) -> bool:
        """Whether the task's trial has not ended; it begins with this question."""
        return self._outcome(bundle, task) is None

    def _outcome(self, bundle: Bundle, task: str | None) -> str | None:
        """Why the task may not be opened here, "" where it may; None until its trial has ended."""
        if task is not None and task not in bundle.manifest.tasks:
            return ""
        known, keys = self._keys
        if known is not bundle:
            keys = {}
            self._keys = (bundle, keys)
        if (key := keys.get(task)) is None:
            key = keys[task] = _key(bundle, task)
        if key in self._answered:
            return ""
        other = f"{key} {'' if task is None else file_identity(bundle.current(task, GRAPH))}"
        with self._changed:
            if other in self._other:
                return self._other[other]
            if other not in self._asked:
                self._asked.add(other)
                heapq.heappush(self._waiting, _Tried(0, next(self._numbers), task, key, other))
                if len(self._threads) < min(_BESIDE, thread_count()):
                    self._threads.append(threading.Thread(target=self._work, name="edgepeft-trials", daemon=True))
                    self._threads[-1].start()
                self._changed.notify()
        return None

    def problem(self, bundle: Bundle, task: str | None) -> BundleError | None:
        """Why the task may not be opened here; one that is merely refused may, and opening it says why."""
        why = self._outcome(bundle, task)
        if why is None:
            return Untried(f"{_name(task)} is being tried in a process of its own; ask again.")
        return BundleError(f"{_name(task)} cannot be run: opening it {why}") if why else None

    def overdue(self, since: float) -> bool:
        """Whether the budget has passed since then, by ``time.monotonic``; opening the first backbone is left out."""
        return self._opened_at is not None and time.monotonic() > max(since, self._opened_at) + self._budget_s

    def close(self) -> None:
        """End what is under way."""
        with self._changed:
            self._closed = True
            for process in self._processes:
                process.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (tried := self._next()) is not None:
            with self._process(tried.turn) as process:
                while tried is not None:
                    outcome = process.outcome(tried)
                    self._opened_at = self._opened_at or process.opened_at
                    self._decide(tried, outcome)
                    tried = None if process.ended else self._next(process.turn)

    def _next(self, turn: int | None = None) -> _Tried | None:
        """The next task; of one ``turn`` None where none of it waits: what its process holds is of no more use."""
        with self._changed:
            if turn is None:
                self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed or not self._waiting or turn not in (None, self._waiting[0].turn):
                return None
            return heapq.heappop(self._waiting)

    @contextlib.contextmanager
    def _process(self, turn: int) -> Iterator[_Process]:
        process = _Process(self.command, turn)
        with self._changed:
            self._processes.add(process)
            if self._closed:
                process.kill()
        try:
            yield process
        finally:
            process.close()
            with self._changed:
                self._processes.discard(process)

    def _decide(self, tried: _Tried, outcome: str) -> None:
        with self._changed:
            if self._closed:
                return
            if outcome == _SLOW and tried.turn + 1 < len(_TURNS):
                heapq.heappush(self._waiting, tried._replace(turn=tried.turn + 1))
                return
            self._asked.discard(tried.other)
            if outcome == _OTHER:  # the files were replaced, which the service will see; then it asks again
                return
            if outcome != _ANSWERED:
                share, times = _TURNS[-1]
                limits = (
                    f"{share * self._budget_s:g} s of processor time and {times} times as much as the bare backbone"
                )
                hungry = f"took more than {_share() >> 20} MB of memory."
                said = {_REFUSED: "", _SLOW: f"took more than {limits}.", _HUNGRY: hungry}
                self._other[tried.other] = said.get(outcome, outcome)
                return
            kept = [*sorted(_read() - self._answered), *sorted(self._answered | {tried.key})][-_MAX_KEPT:]
            with contextlib.suppress(OSError, EdgepeftError):
                write_json(_kept(), kept)
            self._answered.add(tried.key)  # once it is remembered: who sees it may be a next service's start


class _Process:
    """One that tries tasks, one after another, until one ends it."""

    def __init__(self, command: list[str], turn: int) -> None:
        self.turn, self.ended = turn, False
        self.opened_at: float | None = None
        self._backbone: str | None = None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # in a group of its own, which ends as one
            [*command, str(turn), str(os.getpid())],
            stdin=pipe,
            stdout=pipe,
            text=True,
            errors="replace",
            process_group=0,
        )
        self._reader = ThreadPoolExecutor(1)  # a line that a damaged task begins may never end

    def outcome(self, tried: _Tried) -> str:
        """How the task ended, or the backbone before it."""
        if self._backbone is None:
            self._backbone = self._line(_BACKBONE_S)
            self.opened_at = time.monotonic()
        found = self._backbone
        if tried.task is not None and not self.ended:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{json.dumps(tried.task)}\n")
                self._process.stdin.flush()
            found = self._line(_HANGS_S)
        if self.ended:
            return found
        key, _, outcome = found.partition(" ")
        self.ended = key != tried.key
        return _OTHER if self.ended else outcome

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        try:
            line = self._reader.submit(self._process.stdout.readline).result(seconds).strip()
        except TimeoutError:
            self.ended = True
            return f"did not end within {seconds:g} s."
        if line:
            return line
        self.ended = True
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return _SLOW
        return f"ended a process of its own ({signal.Signals(-code).name if code < 0 else f'exit {code}'})."

    def kill(self) -> None:
        """End it, and what it has begun."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and wait until it has."""
        with contextlib.suppress(BrokenPipeError), self._process:  # which closes its pipes and waits
            if self._process.poll() is None:
                self.kill()
            self._reader.shutdown()


def _name(task: str | None) -> str:
    return "the bare backbone" if task is None else f"task {task}"


def _key(bundle: Bundle, task: str | None) -> str:
    """Hash all that is run for the task, and what runs it."""
    backbone = bundle.manifest.backbone
    parts = [metadata.version("onnxruntime"), backbone.sha256.graph, backbone.sha256.weights]
    parts += [bundle.manifest.files.get("tokenizer.json", ""), bundle.manifest.files.get("config.json", "")]
    parts += [] if backbone.text is None else [backbone.text.encoder, backbone.text.decoder]
    parts += [] if task is None else [bundle.manifest.tasks[task].sha256, str(bundle.manifest.tasks[task].max_length)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _kept() -> Path:
    return private_folder(cache_folder() / "opened") / "passed.json"


def _read() -> set[str]:
    try:
        return {str(key) for key in json.loads(_kept().read_bytes())}
    except (OSError, EdgepeftError, ValueError, TypeError):
        return set()


def _share() -> int:
    """Bytes for one of those that are tried at once."""
    return int(_MEMORY * memory_bytes() / _BESIDE)


def _main() -> None:
    """Open the bare backbone and then the tasks that standard input names; print how each ended."""
    folder, threads, budget_s, turn, parent = sys.argv[1:]
    # Linux ends this process with the thread that began it; other systems leave it the end of standard input.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before
        sys.exit(1)
    os.nice(19 if int(turn) else 0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints goes to the log
    with contextlib.suppress(EdgepeftError, OSError):  # the runtime says it, or does without
        hold_prepacked(Bundle(folder)).close()  # before the time is taken
    with Runtime(Path(folder), threads=int(threads) or None) as runtime:
        begin = time.process_time()
        print(_outcome(runtime, None), file=answers, flush=True)
        share, times = _TURNS[int(turn)]
        seconds = max(share * float(budget_s), times * (time.process_time() - begin))
        for line in sys.stdin:
            _limit(seconds)
            print(_outcome(runtime, json.loads(line)), file=answers, flush=True)


def _limit(seconds: float) -> None:
    """Limit what the next task may take; SIGXCPU ends the process, wherever it is."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))
    with contextlib.suppress(OSError, StopIteration, ValueError):  # not Linux
        status = Path("/proc/self/status").read_text()
        now = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + _share(), resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _outcome(runtime: Runtime, task: str | None) -> str:
    if task is not None and task not in runtime.tasks:
        return f"- {_OTHER}"
    key, outcome = _key(runtime.bundle, task), _ANSWERED
    try:
        entry = None if task is None else runtime.bundle.entry(task)
        text = "a" if entry is None else entry.task_kind.readable(pairs=entry.pairs)
        runtime.predict_mixed([task], [text], decoding=Decoding(_TOKENS))
    except MemoryError:
        outcome = _HUNGRY
    except Exception as error:  # whatever a file makes of the libraries that read it: the service will see it too
        outcome = _HUNGRY if _STARVED.search(str(error)) else _REFUSED
    return f"{key} {outcome}"


if __name__ == "__main__":
    _main()

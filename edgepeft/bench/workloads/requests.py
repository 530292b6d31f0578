"""Requests as a program makes them: to one open runtime, or each to a new process.

Of an open runtime, a step is request number i of ``settings["requests"]``.

Each is ``{"how": ..., "tasks": [...], "tokens": [...]}``, texts of so many tokens, which a row of a task's kind is made
around, answered so:

| how | |
|---|---|
| ``one`` | by the one task |
| ``each``, ``mixed`` | an equal block of the texts for each task: task after task, or in one mixed batch |
| ``bare_each``, ``bare`` | the same blocks, or all texts at once, by the backbone without a task |
| ``each_all``, ``all`` | every text by every task: task after task, or all tasks on one input |
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.bench.planning.target import texts_of
from edgepeft.common.errors import EdgepeftError

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

_ANSWER = """
import json, sys
from edgepeft.runtime.runtime import Runtime
asked = json.loads(sys.argv[1])
with Runtime(asked["bundle"], threads=asked["threads"], cache=asked["cache"]) as runtime:
    if asked["task"] is None:
        runtime.predict_mixed([None], asked["texts"])
    else:
        kind = runtime.bundle.entry(asked["task"]).task_kind
        runtime.predict(asked["task"], [kind.readable(pairs=False, text=text) for text in asked["texts"]])
"""


def requests(job: Job) -> Prepared:
    """Open the bundle, no task yet: a task's session opens with its first request."""
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    asked: list[dict[str, Any]] = job.settings["requests"]
    texts = [texts_of(request["tokens"], seed=job.seed + number) for number, request in enumerate(asked)]

    def step(batch: int) -> None:
        _put(runtime, asked[batch]["how"], asked[batch]["tasks"], texts[batch])

    return Prepared(step)


def _rows(runtime: Runtime, task: str, texts: Sequence[str]) -> list[Any]:
    """The texts as the task reads them, beside a word where its rows have more."""
    kind = runtime.bundle.entry(task).task_kind
    return [kind.readable(pairs=False, text=text) for text in texts]


def _put(runtime: Runtime, how: str, tasks: list[str], texts: list[str]) -> None:
    size = len(texts) // len(tasks)
    parts = [texts[number * size :][:size] for number in range(len(tasks))]
    match how:
        case "one":
            runtime.predict(tasks[0], _rows(runtime, tasks[0], texts))
        case "each" | "each_all":
            for task, part in zip(tasks, parts, strict=True):
                runtime.predict(task, _rows(runtime, task, part if how == "each" else texts))
        case "mixed":
            dealt = [_rows(runtime, task, part) for task, part in zip(tasks, parts, strict=True)]
            runtime.predict_mixed([task for task in tasks for _ in range(size)], [row for own in dealt for row in own])
        case "bare":
            runtime.predict_mixed([None] * len(texts), texts)
        case "bare_each":
            for part in parts:
                runtime.predict_mixed([None] * size, part)
        case "all":
            runtime.predict_all(tasks, texts)
        case _:
            raise ValueError(f"no request is put {how!r}")


def cold_start(job: Job) -> Prepared:
    """A step is a new process that opens the bundle and answers one text; a child, so that limits hold for it too."""
    texts = texts_of(job.batches[0], seed=job.seed)
    asked = {"bundle": job.bundle, "task": job.task, "threads": job.threads, "cache": job.cache, "texts": texts}
    command = [sys.executable, "-P", "-c", _ANSWER, json.dumps(asked)]

    def step(batch: int) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            raise EdgepeftError(f"the new process failed: {last[:300]}")

    return Prepared(step)

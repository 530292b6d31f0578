"""Requests to one open runtime, as a program makes them: a step is request number i of ``settings["requests"]``.

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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgepeft.bench.planning.job import Job, Prepared

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the bundle, no task yet: a task's session opens with its first request."""
    from pathlib import Path

    from edgepeft.bench.planning.target import texts_of
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    requests: list[dict[str, Any]] = job.settings["requests"]
    texts = [texts_of(request["tokens"], seed=job.seed + number) for number, request in enumerate(requests)]

    def step(batch: int) -> None:
        _put(runtime, requests[batch]["how"], requests[batch]["tasks"], texts[batch])

    return Prepared(step)


def _rows(runtime: Runtime, task: str, texts: Sequence[str]) -> list[Any]:
    """The texts as the task reads them, beside a word where its rows have more."""
    kind = runtime.bundle.entry(task).task_kind
    return [kind.readable(pairs=False, text=text) for text in texts]


def _put(runtime: Runtime, how: str, tasks: list[str], texts: list[str]) -> None:
    size = len(texts) // len(tasks)
    parts = [texts[start : start + size] for start in range(0, size * len(tasks), size)]
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

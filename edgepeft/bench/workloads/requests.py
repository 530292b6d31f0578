"""Requests to one open runtime, as a program makes them: a step is request number i of ``settings["requests"]``.

Each is ``{"how": ..., "tasks": [...], "tokens": [...]}``, texts of so many tokens, answered so:

| how | |
|---|---|
| ``one`` | by the one task |
| ``each``, ``mixed`` | an equal block of the texts for each task: task after task, or in one mixed batch |
| ``bare_each``, ``bare`` | the same blocks, or all texts at once, by the backbone without a task |
| ``each_all``, ``all`` | every text by every task: task after task, or all tasks on one input |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgepeft.bench.planning.job import Job, Prepared

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the bundle, no task yet: a task's session opens with its first request."""
    from pathlib import Path

    from edgepeft.bench.planning.random_model import texts_of
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    requests: list[dict[str, Any]] = job.settings["requests"]
    texts = [texts_of(request["tokens"], seed=job.seed + number) for number, request in enumerate(requests)]

    def step(batch: int) -> None:
        _put(runtime, requests[batch]["how"], requests[batch]["tasks"], texts[batch])

    return Prepared(step)


def _put(runtime: Runtime, how: str, tasks: list[str], texts: list[str]) -> None:
    size = len(texts) // len(tasks)
    dealt = {task: texts[number * size : (number + 1) * size] for number, task in enumerate(tasks)}
    match how:
        case "one":
            runtime.predict(tasks[0], texts)
        case "each" | "each_all":
            for task in tasks:
                runtime.predict(task, dealt[task] if how == "each" else texts)
        case "mixed":
            named = [task for task in dealt for _ in range(size)]
            runtime.predict_mixed(named, [text for own in dealt.values() for text in own])
        case "bare":
            runtime.predict_mixed([None] * len(texts), texts)
        case "bare_each":
            for own in dealt.values():
                runtime.predict_mixed([None] * size, own)
        case "all":
            runtime.predict_all(tasks, texts)
        case _:
            raise ValueError(f"no request is put {how!r}")

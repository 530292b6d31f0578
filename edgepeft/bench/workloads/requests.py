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

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgepeft.bench.planning.job import Job, Prepared, TextsRequest

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the bundle, no task yet: a task's session opens with its first request."""
    from pathlib import Path

    from edgepeft.bench.planning.random_model import texts_of
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    requests: list[TextsRequest] = job.settings["requests"]
    texts = [texts_of(request["tokens"], seed=job.seed + number) for number, request in enumerate(requests)]

    def step(batch: int) -> None:
        request = requests[batch]
        _WAYS[request["how"]](runtime, request["tasks"], texts[batch])

    return Prepared(step)


def _one(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    runtime.predict(tasks[0], texts)


def _dealt(tasks: list[str], texts: list[str]) -> dict[str, list[str]]:
    """Equal blocks of the texts, task by task."""
    size = len(texts) // len(tasks)
    return {task: texts[number * size : (number + 1) * size] for number, task in enumerate(tasks)}


def _each(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    for task, own in _dealt(tasks, texts).items():
        runtime.predict(task, own)


def _mixed(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    dealt = _dealt(tasks, texts)
    runtime.predict_mixed(
        [task for task, own in dealt.items() for _ in own], [t for own in dealt.values() for t in own]
    )


def _bare(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    runtime.predict_mixed([None] * len(texts), texts)


def _bare_each(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    for own in _dealt(tasks, texts).values():
        runtime.predict_mixed([None] * len(own), own)


def _all(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    runtime.predict_all(tasks, texts)


def _each_all(runtime: Runtime, tasks: list[str], texts: list[str]) -> None:
    for task in tasks:
        runtime.predict(task, texts)


_WAYS: dict[str, Callable[[Runtime, list[str], list[str]], None]] = {
    "one": _one,
    "each": _each,
    "mixed": _mixed,
    "bare": _bare,
    "bare_each": _bare_each,
    "all": _all,
    "each_all": _each_all,
}

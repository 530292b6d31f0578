"""Text written greedily: a step writes ``settings["tokens"]`` tokens of every row of the first batch.

By ``task``, by number ``i`` of ``settings["tasks"]`` in step ``i``, or by the bare backbone.
"""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.errors import EdgepeftError

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the bundle, and the sessions of ``task``."""
    from pathlib import Path

    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    tasks = job.settings.get("tasks", [job.task])
    runtime.generator.session(tasks[0])
    asked = int(job.settings["tokens"])
    inputs = {name: job.batch(0)[name] for name in runtime.bundle.architecture.inputs}

    def step(batch: int) -> None:
        written = runtime.generator.write(tasks[batch % len(tasks)], inputs, Decoding(max_new_tokens=asked))
        if fewer := [len(text.tokens) for text in written if len(text.tokens) < asked]:
            raise EdgepeftError(f"a text ended after {min(fewer)} of {asked} tokens: times would be of less work.")

    return Prepared(step)

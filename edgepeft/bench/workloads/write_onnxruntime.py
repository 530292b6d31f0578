"""Text written greedily, as ``edgepeft run`` does it: a step writes ``new_tokens`` of every row of a batch.

By ``task``, by the next of ``settings["tasks"]`` in each step, or by the bare backbone.  No token ends a text.
"""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the bundle, and the sessions of ``task``."""
    from pathlib import Path

    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    tasks = job.settings.get("tasks", [job.task])
    runtime.generator.session(tasks[0])
    decoding = Decoding(max_new_tokens=job.new_tokens, ends=False)

    def step(batch: int) -> None:
        inputs = {name: job.batch(batch % len(job.batches))[name] for name in runtime.bundle.architecture.inputs}
        runtime.generator.write(tasks[batch % len(tasks)], inputs, decoding)

    return Prepared(step)

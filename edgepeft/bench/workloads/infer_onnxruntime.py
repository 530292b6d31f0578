"""Inference as ``edgepeft run`` does it: the runtime on the bundle's task, or on the bare backbone."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the session; a step is one batch to the logits, or to the last hidden state."""
    from pathlib import Path

    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    runtime.session(job.task)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        if job.task is None:
            runtime.last_hidden_state(inputs)
        else:
            runtime.logits(job.task, inputs)

    return Prepared(step)

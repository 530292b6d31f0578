"""Inference as ``edgepeft run`` does it: the runtime on the bundle's task, or on the bare backbone."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["ENGINE", "WORKLOAD", "prepare"]

ENGINE = "onnxruntime"
WORKLOAD = "infer"


def prepare(job: Job) -> Prepared:
    """Open the session; a step is one batch to the logits, or to the last hidden state."""
    from pathlib import Path

    import numpy as np

    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    runtime.session(job.task)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        inputs = {**inputs, "token_type_ids": np.zeros_like(inputs["input_ids"])}
        if job.task is None:
            runtime.last_hidden_state(inputs)
        else:
            runtime.logits(job.task, inputs)

    return Prepared(step)

"""Inference as ``edgepeft run`` does it: the bundle's own session of a task, or of the bare backbone."""

from __future__ import annotations

from edgepeft.bench.job import Job, Prepared

__all__ = ["ENGINE", "WORKLOAD", "prepare"]

ENGINE = "onnxruntime"
WORKLOAD = "infer"


def prepare(job: Job) -> Prepared:
    """Open the session; a step is one run to the logits, or to the last hidden state."""
    from pathlib import Path

    import numpy as np

    from edgepeft.runtime.runtime import Runtime

    session = Runtime(Path(job.bundle), threads=job.threads).session(job.task)
    names = [node.name for node in session.get_inputs()]
    wanted = ["logits"] if job.task else ["last_hidden_state"]

    def step(batch: int) -> None:
        values = job.batch(batch)
        values = {**values, "token_type_ids": np.zeros_like(values["input_ids"])}
        session.run(wanted, {name: values[name] for name in names})

    return Prepared(step)

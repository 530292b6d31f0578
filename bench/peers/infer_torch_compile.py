"""Inference of the bare model with ``torch.compile`` (Inductor's C++ code, dynamic shapes)."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Compile; a step is one forward pass without gradients.  The first one, a warm-up, generates the code."""
    import torch

    from edgepeft.bench.workloads.models import batch_tensors, load

    _, model = load(job)
    compiled = torch.compile(model, dynamic=len({max(batch) for batch in job.batches}) > 1)

    def step(batch: int) -> None:
        with torch.inference_mode():
            compiled(**batch_tensors(job, batch))

    step(0)
    return Prepared(step)

"""Inference with transformers on PyTorch CPU: the bare model, or with a delta's hooks attached."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Load the model; a step is one forward pass without gradients."""
    import torch

    from edgepeft.bench.workloads._torch import FRESH_DELTA, batch_tensors, job_delta, load

    backbone, model = load(job)
    delta = None if job.task is None else job_delta(job, backbone).eval()

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        with torch.inference_mode():
            model(**inputs) if delta is None else delta.logits(model, inputs)

    return Prepared(step, () if delta is None else (FRESH_DELTA,))

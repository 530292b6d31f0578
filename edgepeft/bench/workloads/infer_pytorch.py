"""Inference with transformers on PyTorch CPU: the bare model, or with a delta's hooks attached."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Load the model; a step is one forward pass without gradients."""
    import torch

    from edgepeft.bench.workloads._torch import FRESH_DELTA, batch_tensors, job_delta, load

    backbone, model = load(job)
    if job.task is None:

        def bare(batch: int) -> None:
            with torch.inference_mode():
                model(**batch_tensors(job, batch))

        return Prepared(bare)
    delta = job_delta(job, backbone).eval()

    def with_delta(batch: int) -> None:
        with torch.inference_mode():
            delta.logits(model, batch_tensors(job, batch))

    return Prepared(with_delta, (FRESH_DELTA,))

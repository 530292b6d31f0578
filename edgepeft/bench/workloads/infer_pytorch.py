"""Inference with transformers on PyTorch CPU: the bare model, or with a delta's hooks attached."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["ENGINE", "WORKLOAD", "prepare"]

ENGINE = "pytorch"
WORKLOAD = "infer"


def prepare(job: Job) -> Prepared:
    """Load the model; a step is one forward pass without gradients."""
    import torch

    from edgepeft.bench.workloads._torch import FRESH_DELTA, fresh_delta, inputs_of, load

    backbone, model = load(job)
    if job.task is None:

        def bare(batch: int) -> None:
            with torch.inference_mode():
                model(**inputs_of(job, batch))

        return Prepared(bare)
    delta = fresh_delta(job, backbone).eval()

    def with_delta(batch: int) -> None:
        with torch.inference_mode():
            delta.logits(model, inputs_of(job, batch))

    return Prepared(with_delta, (FRESH_DELTA,))

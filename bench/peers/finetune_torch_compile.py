"""A step of fine-tuning whose forward and backward pass ``torch.compile`` makes (Inductor's C++ code)."""

from __future__ import annotations

from functools import partial

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Compile.  The first step, a warm-up, generates the code."""
    import torch

    from edgepeft.bench.workloads.models import finetune_pytorch

    dynamic = len({max(batch) for batch in job.batches}) > 1
    prepared = finetune_pytorch(job, wrap=partial(torch.compile, dynamic=dynamic))
    prepared.step(0)
    return prepared

"""Text written greedily by transformers' ``generate``: the bare model, or with a delta's hooks attached.

A step writes ``new_tokens`` of every row of a batch; no token ends a text.
"""

from __future__ import annotations

from typing import Any

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Load the model; its cache of keys and values is on, as by default."""
    import torch

    from edgepeft.bench.workloads._torch import FRESH_DELTA, batch_tensors, job_delta, load
    from edgepeft.training.engine import generated, greedy

    backbone, model = load(job)
    delta = None if job.task is None else job_delta(job, backbone).eval()
    generate: Any = model.generate

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        with torch.inference_mode():
            if delta is None:
                generate(**inputs, **greedy(backbone.architecture, job.new_tokens, ends=False))
            else:
                generated(delta, model, inputs, job.new_tokens, ends=False)

    return Prepared(step, () if delta is None else (FRESH_DELTA,))

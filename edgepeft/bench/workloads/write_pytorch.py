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
    from edgepeft.training.text_engine import generated, greedy

    backbone, model = load(job)
    if job.task is None:
        generate: Any = model.generate

        def bare(batch: int) -> None:
            with torch.inference_mode():
                generate(**batch_tensors(job, batch), **greedy(backbone.architecture, job.new_tokens, ends=False))

        return Prepared(bare)
    delta = job_delta(job, backbone).eval()

    def with_delta(batch: int) -> None:
        with torch.inference_mode():
            generated(delta, model, batch_tensors(job, batch), job.new_tokens, ends=False)

    return Prepared(with_delta, (FRESH_DELTA,))

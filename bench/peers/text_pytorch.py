"""Text by transformers' ``generate`` on PyTorch, of the model in ``job.model``."""

from __future__ import annotations

from bench.peers._writing import generating
from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Load the model; its cache of keys and values is on, as by default."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(job.threads)
    return generating(AutoModelForSeq2SeqLM.from_pretrained(str(job.model)).eval(), job)

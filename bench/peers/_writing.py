"""What peers that write text share: the same tokens of every row, none fewer."""

from __future__ import annotations

from typing import Any

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.common.errors import EdgepeftError


def generating(model: Any, job: Job) -> Prepared:
    """Steps of ``model.generate``, greedily, as transformers, optimum and optimum-intel have it."""
    import torch

    from edgepeft.bench.workloads.models import batch_tensors

    asked = job.new_tokens
    model.generation_config.eos_token_id = None  # no token ends a text, so every row gets all that are asked for

    def step(batch: int) -> None:
        with torch.inference_mode():
            written = model.generate(**batch_tensors(job, batch), max_new_tokens=asked, num_beams=1, do_sample=False)
        require_all([len(row) - 1 for row in written], asked)  # the first starts a text

    return Prepared(step)


def require_all(lengths: list[int], asked: int) -> None:
    """See that every row has as many tokens as were asked for."""
    if set(lengths) != {asked}:
        raise EdgepeftError(f"the peer wrote {sorted(set(lengths))} tokens, {asked} were asked for.")

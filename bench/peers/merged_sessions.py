"""A merged model for each task, every one a session of its own: step i opens the i-th and answers a batch.

All are the file ``job.model``: their sizes and speed do not depend on what the weights are, and each
session packs a private copy of them, as sessions on different files do.
"""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Nothing is open before the first step."""
    from edgepeft.bench.workloads.models import peer

    opened: list[Prepared] = []

    def step(batch: int) -> None:
        opened.append(peer(job))
        opened[-1].step(0)

    return Prepared(step)

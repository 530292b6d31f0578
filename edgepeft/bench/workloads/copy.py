"""Memory copies, as tinymembench's "standard memcpy" counts them: bytes copied, not bytes read plus written.

The blocks are far beyond any cache. One step is ``REPEATS`` copies of them; each of the job's threads has its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["BYTES_PER_STEP", "REPEATS", "prepare"]

_BLOCK = 64 << 20  # bytes; two of them fit a board of 512 MB
REPEATS = 4
BYTES_PER_STEP = _BLOCK * REPEATS


def prepare(job: Job) -> Prepared:
    """Blocks that are in memory already, and the step that copies each onto its target."""
    import numpy as np

    n = _BLOCK // 8 // job.threads
    blocks = [(np.ones(n), np.zeros(n)) for _ in range(job.threads)]
    pool = ThreadPoolExecutor(job.threads)

    def copies(number: int) -> None:
        source, target = blocks[number]
        for _ in range(REPEATS):
            np.copyto(target, source)  # releases the interpreter's lock

    def step(batch: int) -> None:
        if job.threads == 1:
            copies(0)
        else:
            list(pool.map(copies, range(job.threads)))

    step(0)  # every page is there from now on
    return Prepared(step)

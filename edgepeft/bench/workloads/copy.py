"""Memory copy on one thread, as tinymembench's "standard memcpy" counts it: bytes copied, not bytes read plus written.

The block is far beyond any cache. One step is ``REPEATS`` copies.
"""

from __future__ import annotations

from edgepeft.bench.job import Job, Prepared

__all__ = ["BYTES_PER_STEP", "ENGINE", "REPEATS", "WORKLOAD", "prepare"]

ENGINE = "numpy"
WORKLOAD = "copy"

_BLOCK = 64 << 20  # bytes; two of them fit a board of 512 MB
REPEATS = 4
BYTES_PER_STEP = _BLOCK * REPEATS


def prepare(job: Job) -> Prepared:
    """Two blocks that are in memory already, and the step that copies one onto the other."""
    import numpy as np

    source, target = np.ones(_BLOCK // 8), np.zeros(_BLOCK // 8)
    np.copyto(target, source)  # every page is there from now on

    def step(batch: int) -> None:
        for _ in range(REPEATS):
            np.copyto(target, source)

    return Prepared(step)

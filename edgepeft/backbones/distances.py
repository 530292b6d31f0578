"""Which of a table's rows stands for a distance between two tokens (Raffel et al., 2020, section 2.1, and their code).

Half of the buckets hold one distance each, the others grow by powers up to the largest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["buckets"]


def buckets(n_buckets: int, largest: int, *, both_ways: bool) -> NDArray[np.int64]:
    """The bucket of each distance from ``-largest`` (where ``both_ways``, else 0) to ``largest``.

    One way, a distance is how far back; both ways, how far on, with buckets of its own for what comes later.  Float32,
    as in the code that the weights were learnt with.
    """
    if both_ways:
        half = buckets(n_buckets // 2, largest, both_ways=False)
        return np.concatenate([half[:0:-1], half[:1], half[1:] + n_buckets // 2])
    distances, exact = np.arange(largest + 1), n_buckets // 2
    grown = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    grown = grown / np.float32(math.log(largest / exact)) * np.float32(n_buckets - exact)
    far = np.minimum(exact + grown.astype(np.int64), n_buckets - 1)
    return np.where(distances < exact, distances, far).astype(np.int64)

"""How long a run will take, from its plan: said before anything is measured, and no more than a guess."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["expected_s", "gemm_rate", "in_words"]

_LOAD_S = 5.0  # a process, its libraries and the model
_OF_GEMM = 0.5  # of the rate of large matrix products that a Transformer's step gets
_SIZE = 1024


def gemm_rate(clock: Callable[[], float] = time.perf_counter) -> float:
    """FLOP/s of a float32 product of two large matrices here, on all threads; takes a tenth of a second."""
    matrix = np.ones((_SIZE, _SIZE), np.float32)
    seconds = []
    for _ in range(3):
        begin = clock()
        matrix @ matrix
        seconds.append(max(clock() - begin, 1e-9))
    return 2 * _SIZE**3 / min(seconds)


def expected_s(
    steps: Sequence[tuple[str, float]], rounds: tuple[int, int], rate: float, most_s: float
) -> tuple[float, float]:
    """The least and the most seconds: of workers that start, then do between so many rounds, warming up included.

    Args:
        steps: workload and FLOP of a step, of each unit.
        rounds: the least and the most.
        rate: of matrix products, FLOP/s.
        most_s: after which a workload begins no new round.
    """
    ends = []
    for count in rounds:
        each = {workload: 0.0 for workload, _ in steps}
        for workload, flop in steps:
            each[workload] += count * flop / (_OF_GEMM * rate)
        ends.append(len(steps) * _LOAD_S + sum(min(seconds, most_s) for seconds in each.values()))
    return ends[0], ends[1]


def in_words(ends: tuple[float, float]) -> str:
    """``about 3 to 8 minutes``, or one figure where both are the same."""
    low, high = (f"{end:.0f}" if ends[1] < 90 else f"{end / 60:.0f}" for end in ends)
    unit = "seconds" if ends[1] < 90 else "minutes"
    return f"about {low} {unit}" if low == high else f"about {low} to {high} {unit}"

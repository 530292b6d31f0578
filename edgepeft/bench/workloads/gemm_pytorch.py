"""The host's GEMM rate through PyTorch: the same products as ``gemm``, to tell an engine's part from the step's.

PyTorch's library is not equally good on every processor (MKL on AMD), and ratios to PyTorch carry that.
"""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """The operands, and the step that multiplies them ``REPEATS`` times."""
    import torch

    from edgepeft.bench.workloads.gemm import REPEATS, SHAPE

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    m, k, n = SHAPE
    a, b = torch.randn(m, k), torch.randn(k, n)

    def step(batch: int) -> None:
        with torch.inference_mode():
            for _ in range(REPEATS):
                torch.mm(a, b)

    return Prepared(step)

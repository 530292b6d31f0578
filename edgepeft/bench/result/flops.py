"""Floating-point operations of an encoder, counted from its architecture: MatMul and Gemm only.

A token costs 2 operations per weight of every matrix it passes (embeddings are gathered, not
multiplied); a text of n tokens costs 4 n^2 d a layer for attention's two products.  Real tokens are
counted, padding is not: an engine that works on padding gets no credit for it.  Deltas and heads
(1 to 3 %) are left out, so figures of all methods divide by the same work.

Training (backward of y = x W: one product for x's gradient, one for W's): a frozen matrix costs 2
forward passes, a trained one 3, attention 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgepeft.backbones.base import Architecture

__all__ = ["flops_per_instance"]

_PASSES = {"infer": (1, 1), "finetune": (2, 3), "finetune-full": (3, 3)}  # (matrices, attention)


def flops_per_instance(
    architecture: Architecture, lengths: Sequence[int], workload: str = "infer", *, full: bool = False
) -> float:
    """Mean operations of one text (or training row) over ``lengths`` (tokens each).

    ``full``: every weight is trained, so weight gradients are computed as well.
    """
    matrices, attention = _PASSES["finetune-full" if full and workload == "finetune" else workload]
    shapes = (shape for name, shape in architecture.tensors.items() if not name.endswith("_embeddings.weight"))
    per_token = 2 * sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)  # the weights of all matrices
    per_pair = 4 * architecture.hidden_size * architecture.n_layers
    total = sum(matrices * per_token * n + attention * per_pair * n * n for n in lengths)
    return total / len(lengths)

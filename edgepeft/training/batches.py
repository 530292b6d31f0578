"""Batches as PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgepeft.data.batches import Encoded

__all__ = ["tensors_of"]


def tensors_of(rows: Encoded, chosen: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
    """The model's inputs [batch, longest] and targets [batch] of those rows."""
    inputs, targets = rows.batch(chosen)
    return {name: torch.from_numpy(values) for name, values in inputs.items()}, torch.from_numpy(targets)

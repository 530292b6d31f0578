"""The form of three families' heads: a fresh dense layer, an activation, and a linear layer."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear

__all__ = ["DenseHead"]


class DenseHead(Head):
    """logits = W dropout(act(W_d z + b_d)) + b: a fresh dense layer, then a linear one, called as ``places`` has them.

    z is the pooled value, past the dropout where ``drops_first``.
    """

    activation: ClassVar[staticmethod[..., Tensor]]  # act, of one tensor

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        for name, width in zip(self.places, (hidden, outputs), strict=True):
            self.add_module(name, fresh_linear(hidden, width))

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        dense, out = (self.get_submodule(name) for name in self.places)
        features = self.activation(dense(self.dropout(pooled) if self.drops_first else pooled))
        logits: Tensor = out(self.dropout(features))
        return logits

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """d d + d + d C + C."""
        d = architecture.hidden_size
        return d * d + d + d * outputs + outputs

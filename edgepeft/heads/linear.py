"""One linear layer on the pooled value, after dropout (Devlin et al., 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear

__all__ = ["Linear"]


class Linear(Head):
    """logits = W dropout(pooled) + b."""

    kind: ClassVar[str] = "linear"
    source: ClassVar[str] = "Devlin et al., 2019, without the pooler; sentence-transformers with mean pooling"
    places: ClassVar[Mapping[str, str]] = {"classifier": "classifier"}

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        self.classifier = fresh_linear(hidden, outputs)

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """d C + C."""
        return architecture.hidden_size * outputs + outputs

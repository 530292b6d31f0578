"""DistilBERT's head (Sanh et al., 2019, as transformers has it): a fresh dense layer with ReLU, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear

__all__ = ["DistilBert"]


class DistilBert(Head):
    """logits = W dropout(relu(W_d pooled + b_d)) + b."""

    kind: ClassVar[str] = "distilbert"
    source: ClassVar[str] = "DistilBertForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        self.pre_classifier = fresh_linear(hidden, hidden)
        self.classifier = fresh_linear(hidden, outputs)

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        features = functional.relu(self.pre_classifier(pooled))
        logits: Tensor = self.classifier(self.dropout(features))
        return logits

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """d d + d + d C + C."""
        d = architecture.hidden_size
        return d * d + d + d * outputs + outputs

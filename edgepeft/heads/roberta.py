"""RoBERTa's head (Liu et al., 2019, as transformers has it): a fresh dense layer with tanh, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear

__all__ = ["Roberta"]


class Roberta(Head):
    """logits = W dropout(tanh(W_d dropout(pooled) + b_d)) + b."""

    kind: ClassVar[str] = "roberta"
    source: ClassVar[str] = "RobertaForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        self.dense = fresh_linear(hidden, hidden)
        self.out_proj = fresh_linear(hidden, outputs)

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        features = torch.tanh(self.dense(self.dropout(pooled)))
        logits: Tensor = self.out_proj(self.dropout(features))
        return logits

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """d d + d + d C + C."""
        d = architecture.hidden_size
        return d * d + d + d * outputs + outputs

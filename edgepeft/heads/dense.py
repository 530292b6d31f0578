"""Heads of a fresh dense layer, an activation, and a linear layer, as transformers has them for three families.

DistilBERT's has ReLU (Sanh et al., 2019), ELECTRA's the exact GELU (Clark et al., 2020), RoBERTa's tanh (Liu et al.,
2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear

__all__ = ["DenseHead", "DistilBert", "Electra", "Roberta"]


class DenseHead(Head):
    """logits = W dropout(act(W_d z + b_d)) + b: a fresh dense layer, then a linear one, called as ``places`` has them.

    z is the pooled value, past the dropout where ``drops_first``.
    """

    drops_first: ClassVar[bool]
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


class DistilBert(DenseHead):
    """logits = W dropout(relu(W_d pooled + b_d)) + b."""

    kind: ClassVar[str] = "distilbert"
    source: ClassVar[str] = "DistilBertForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    drops_first: ClassVar[bool] = False
    activation = staticmethod(functional.relu)


class Electra(DenseHead):
    """logits = W dropout(gelu(W_d dropout(pooled) + b_d)) + b."""

    kind: ClassVar[str] = "electra"
    source: ClassVar[str] = "ElectraForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    drops_first: ClassVar[bool] = True
    activation = staticmethod(functional.gelu)


class Roberta(DenseHead):
    """logits = W dropout(tanh(W_d dropout(pooled) + b_d)) + b."""

    kind: ClassVar[str] = "roberta"
    source: ClassVar[str] = "RobertaForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    drops_first: ClassVar[bool] = True
    activation = staticmethod(torch.tanh)

"""Four families' heads, as transformers has them: a fresh dense layer, an activation, and a linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.heads.base import Head, fresh_linear


class DenseHead(Head):
    """logits = W dropout(act(W_d z + b_d)) + b; z is pooled, past the dropout where ``drops_first``."""

    activation: ClassVar[staticmethod[..., Tensor]]  # act, of one tensor

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        for name, width in zip(self.places, (hidden, outputs), strict=True):
            self.add_module(name, fresh_linear(hidden, width))

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        dense, out = (self.get_submodule(name) for name in self.places)
        features = self.activation(dense(self.dropout(pooled) if self.drops_first else pooled))
        return out(self.dropout(features))


class Deberta(DenseHead):
    """logits = W dropout(gelu(W_d pooled + b_d)) + b: transformers' DebertaV2ForSequenceClassification."""

    kind = "deberta"
    places: ClassVar[Mapping[str, str]] = {"dense": "pooler.dense", "out_proj": "classifier"}
    drops_first = False
    activation = staticmethod(functional.gelu)


class DistilBert(DenseHead):
    """logits = W dropout(relu(W_d pooled + b_d)) + b: transformers' DistilBertForSequenceClassification."""

    kind = "distilbert"
    places: ClassVar[Mapping[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    drops_first = False
    activation = staticmethod(functional.relu)


class Electra(DenseHead):
    """logits = W dropout(gelu(W_d dropout(pooled) + b_d)) + b: transformers' ElectraForSequenceClassification."""

    kind = "electra"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    activation = staticmethod(functional.gelu)


class Roberta(DenseHead):
    """logits = W dropout(tanh(W_d dropout(pooled) + b_d)) + b: transformers' RobertaForSequenceClassification."""

    kind = "roberta"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    activation = staticmethod(torch.tanh)

"""Heads on what an encoder gives: one linear layer, a dense layer before it as transformers has them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.heads.base import Head, fresh_linear


class Linear(Head):
    """logits = W dropout(pooled) + b: Devlin et al. (2019) without the pooler, or sentence-transformers on a mean."""

    kind: ClassVar[str] = "linear"
    places: ClassVar[Mapping[str, str]] = {"classifier": "classifier"}
    biased: ClassVar[bool] = True

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        (self.layer,) = self.places  # what it is called; the weight's name is stored
        self.add_module(self.layer, fresh_linear(hidden, outputs, bias=self.biased))

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        logits: Tensor = self.get_submodule(self.layer)(self.dropout(pooled))
        return logits

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """d C, and with biases C."""
        return architecture.hidden_size * outputs + outputs * cls.biased


class Score(Linear):
    """logits = W dropout(pooled): transformers' LlamaForSequenceClassification, which reads the last token."""

    kind: ClassVar[str] = "score"
    places: ClassVar[Mapping[str, str]] = {"score": "score"}
    biased: ClassVar[bool] = False


class BertPooler(Linear):
    """logits = W dropout(tanh(W_p pooled + b_p)) + b, W_p and b_p the backbone's: BertForSequenceClassification."""

    kind: ClassVar[str] = "bert-pooler"
    reads: ClassVar[tuple[str, ...]] = ("pooler.dense.weight", "pooler.dense.bias")

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d], pooler's [d, d] and [d] -> [batch, outputs]."""
        weight, bias = weights
        return super().forward(torch.tanh(functional.linear(pooled, weight, bias)))


class AlbertPooler(BertPooler):
    """The same, of AlbertForSequenceClassification."""

    kind: ClassVar[str] = "albert-pooler"
    reads: ClassVar[tuple[str, ...]] = ("pooler.weight", "pooler.bias")


class Tokens(Linear):
    """logits = W dropout(h) + b for the h of every token, [tokens, d] or [batch, length, d]: ForTokenClassification."""

    kind: ClassVar[str] = "tokens"
    per_token: ClassVar[bool] = True


class DenseHead(Head):
    """logits = W dropout(act(W_d z + b_d)) + b: the two layers are called as ``places`` has them.

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


class Deberta(DenseHead):
    """logits = W dropout(gelu(W_d pooled + b_d)) + b: transformers' DebertaV2ForSequenceClassification."""

    kind: ClassVar[str] = "deberta"
    places: ClassVar[Mapping[str, str]] = {"dense": "pooler.dense", "out_proj": "classifier"}
    drops_first: ClassVar[bool] = False
    activation = staticmethod(functional.gelu)


class DistilBert(DenseHead):
    """logits = W dropout(relu(W_d pooled + b_d)) + b: transformers' DistilBertForSequenceClassification."""

    kind: ClassVar[str] = "distilbert"
    places: ClassVar[Mapping[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    drops_first: ClassVar[bool] = False
    activation = staticmethod(functional.relu)


class Electra(DenseHead):
    """logits = W dropout(gelu(W_d dropout(pooled) + b_d)) + b: transformers' ElectraForSequenceClassification."""

    kind: ClassVar[str] = "electra"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    activation = staticmethod(functional.gelu)


class Roberta(DenseHead):
    """logits = W dropout(tanh(W_d dropout(pooled) + b_d)) + b: transformers' RobertaForSequenceClassification."""

    kind: ClassVar[str] = "roberta"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    activation = staticmethod(torch.tanh)


class Vector(Head):
    """logits = pooled / |pooled|, as sentence-transformers has it (Reimers and Gurevych, 2019, arXiv:1908.10084)."""

    kind: ClassVar[str] = "vector"
    bare: ClassVar[bool] = True

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] as it is, but for its length."""
        return pooled / ((pooled * pooled).sum(-1, keepdim=True) + 1e-24).sqrt()  # of no length it stays zeros

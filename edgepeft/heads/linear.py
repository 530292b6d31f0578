"""One linear layer on what dropout leaves (Devlin et al., 2019): of a pooled value, a pooler's or each token's."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.heads.base import Head, fresh_linear


class Linear(Head):
    """logits = W dropout(pooled) + b: Devlin et al. without the pooler; sentence-transformers with mean pooling."""

    kind = "linear"
    places: ClassVar[Mapping[str, str]] = {"classifier": "classifier"}
    biased: ClassVar[bool] = True

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        (self.layer,) = self.places  # what it is called; the weight's name is stored
        self.add_module(self.layer, fresh_linear(hidden, outputs, bias=self.biased))

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        return self.get_submodule(self.layer)(self.dropout(pooled))


class Score(Linear):
    """logits = W dropout(pooled): transformers' LlamaForSequenceClassification, which reads the last token."""

    kind = "score"
    places: ClassVar[Mapping[str, str]] = {"score": "score"}
    biased = False


class BertPooler(Linear):
    """logits = W dropout(tanh(W_p pooled + b_p)) + b, W_p and b_p the backbone's: BertForSequenceClassification."""

    kind = "bert-pooler"
    reads = ("pooler.dense.weight", "pooler.dense.bias")

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d], pooler's [d, d] and [d] -> [batch, outputs]."""
        weight, bias = weights
        return super().forward(torch.tanh(functional.linear(pooled, weight, bias)))


class AlbertPooler(BertPooler):
    """The same, of AlbertForSequenceClassification."""

    kind = "albert-pooler"
    reads = ("pooler.weight", "pooler.bias")


class Tokens(Linear):
    """logits = W dropout(h) + b for the h of every token, [tokens, d] or [batch, length, d]: ForTokenClassification."""

    kind = "tokens"
    per_token = True

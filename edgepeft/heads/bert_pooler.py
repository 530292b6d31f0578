"""BERT's head (Devlin et al., 2019): the pretrained pooler, dense and tanh, stays frozen; a linear layer reads it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.heads.linear import Linear

__all__ = ["BertPooler"]


class BertPooler(Linear):
    """logits = W dropout(tanh(W_p pooled + b_p)) + b; W_p and b_p are the backbone's."""

    kind: ClassVar[str] = "bert-pooler"
    source: ClassVar[str] = "BertForSequenceClassification of transformers"
    reads: ClassVar[tuple[str, ...]] = ("pooler.dense.weight", "pooler.dense.bias")

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d], pooler's [d, d] and [d] -> [batch, outputs]."""
        weight, bias = weights
        return super().forward(torch.tanh(functional.linear(pooled, weight, bias)))

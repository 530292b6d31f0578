"""RoBERTa's head (Liu et al., 2019, as transformers has it): a fresh dense layer with tanh, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from edgepeft.heads.dense import DenseHead

__all__ = ["Roberta"]


class Roberta(DenseHead):
    """logits = W dropout(tanh(W_d dropout(pooled) + b_d)) + b."""

    kind: ClassVar[str] = "roberta"
    source: ClassVar[str] = "RobertaForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    drops_first: ClassVar[bool] = True
    activation = staticmethod(torch.tanh)

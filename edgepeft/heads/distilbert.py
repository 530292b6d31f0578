"""DistilBERT's head (Sanh et al., 2019, as transformers has it): a fresh dense layer with ReLU, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch.nn import functional

from edgepeft.heads.dense import DenseHead

__all__ = ["DistilBert"]


class DistilBert(DenseHead):
    """logits = W dropout(relu(W_d pooled + b_d)) + b."""

    kind: ClassVar[str] = "distilbert"
    source: ClassVar[str] = "DistilBertForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
    drops_first: ClassVar[bool] = False
    activation = staticmethod(functional.relu)

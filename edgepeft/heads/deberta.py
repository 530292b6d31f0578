"""DeBERTa's head (He et al., 2021, as transformers has it): a fresh dense layer with exact GELU, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch.nn import functional

from edgepeft.heads.dense import DenseHead

__all__ = ["Deberta"]


class Deberta(DenseHead):
    """logits = W dropout(gelu(W_d pooled + b_d)) + b."""

    kind: ClassVar[str] = "deberta"
    source: ClassVar[str] = "DebertaV2ForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "pooler.dense", "out_proj": "classifier"}
    drops_first: ClassVar[bool] = False
    activation = staticmethod(functional.gelu)

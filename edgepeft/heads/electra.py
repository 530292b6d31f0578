"""ELECTRA's head (Clark et al., 2020, as transformers has it): fresh dense layer with exact GELU, then a linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch.nn import functional

from edgepeft.heads.dense import DenseHead

__all__ = ["Electra"]


class Electra(DenseHead):
    """logits = W dropout(gelu(W_d dropout(pooled) + b_d)) + b."""

    kind: ClassVar[str] = "electra"
    source: ClassVar[str] = "ElectraForSequenceClassification of transformers"
    places: ClassVar[Mapping[str, str]] = {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}
    drops_first: ClassVar[bool] = True
    activation = staticmethod(functional.gelu)

"""ALBERT's head (Lan et al., 2020, as transformers has it): BERT's, over a pooler that is called otherwise."""

from __future__ import annotations

from typing import ClassVar

from edgepeft.heads.bert_pooler import BertPooler

__all__ = ["AlbertPooler"]


class AlbertPooler(BertPooler):
    """logits = W dropout(tanh(W_p pooled + b_p)) + b; W_p and b_p are the backbone's."""

    kind: ClassVar[str] = "albert-pooler"
    source: ClassVar[str] = "AlbertForSequenceClassification of transformers"
    reads: ClassVar[tuple[str, ...]] = ("pooler.weight", "pooler.bias")

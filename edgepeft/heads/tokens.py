"""A tag for each token: one linear layer on its last hidden state, after dropout (Devlin et al., 2019, section 5.3).

transformers' ``BertForTokenClassification`` and its like have the same.
"""

from __future__ import annotations

from typing import ClassVar

from edgepeft.heads.linear import Linear

__all__ = ["Tokens"]


class Tokens(Linear):
    """logits = W dropout(h) + b for the h of every token, [tokens, d] or [batch, length, d]."""

    kind: ClassVar[str] = "tokens"
    source: ClassVar[str] = "Devlin et al., 2019, for named entities; transformers' ForTokenClassification"
    per_token: ClassVar[bool] = True

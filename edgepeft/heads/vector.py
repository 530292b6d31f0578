"""Embeddings: pooled / |pooled| (Reimers and Gurevych, 2019, arXiv:1908.10084); nothing is trained."""

from torch import Tensor

from edgepeft.heads.base import Head


class Vector(Head):
    """logits = pooled / |pooled|, as sentence-transformers pools and normalises."""

    kind = "vector"
    bare = True

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        return pooled / ((pooled * pooled).sum(-1, keepdim=True) + 1e-24).sqrt()  # of no length it stays zeros

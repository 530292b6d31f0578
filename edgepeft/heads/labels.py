"""Labels that a decoder scores (Raffel et al., 2020): nothing is trained, its table of words is its own.

    log p(label) = sum over the edges of its way of log softmax(logits of the edge and its siblings)

Among labels, never an answer that is none: where a greedy decoder would write a label, that is the best one along the
trie.

Letters: B rows, n nodes of the trie of the labels' tokens, e its edges.
"""

import torch
from torch import Tensor

from edgepeft.backbones.trie import Trie
from edgepeft.heads.base import Head


class Labels(Head):
    """The labels' log-probabilities among themselves, from what the decoder gives the edges of their trie."""

    kind = "labels"
    decodes = True

    siblings: Tensor
    paths: Tensor

    def __init__(self, hidden: int, outputs: int, dropout: float, trie: Trie) -> None:
        super().__init__(hidden, outputs, dropout)
        # No numbers, for those of a delta's graph are trained.
        self.register_buffer("siblings", torch.from_numpy(trie.siblings), persistent=False)  # (n, e)
        self.register_buffer("paths", torch.from_numpy(trie.paths), persistent=False)  # (e, labels)

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """(B, n, e) -> (B, labels)."""
        among = torch.where(self.siblings, pooled, torch.finfo(torch.float32).min).log_softmax(-1)
        of_edges = torch.where(self.siblings, among, 0.0).sum(1)  # (B, e): an edge leaves one node
        return of_edges @ self.paths.to(pooled.dtype)

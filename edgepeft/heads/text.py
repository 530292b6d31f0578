"""Text that a decoder writes, by its own table of words (Raffel et al., 2020): nothing is trained.

    loss = mean over the target tokens of -log softmax(logits)[token]

A target's tokens end with the one that ends a text; the decoder reads the start and all of them but the last.
"""

from torch import Tensor

from edgepeft.heads.base import Head


class LanguageModel(Head):
    """What the decoder gives every word, at each of the tokens that it reads."""

    kind = "text"
    decodes = True
    writes = True

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """(B, T, v), of B rows, T tokens of the longest target and v words, as they are."""
        return pooled

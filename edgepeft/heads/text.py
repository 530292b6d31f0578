"""Text that the model's own decoder writes (Raffel et al., 2020): nothing to train, for the table of words is its own.

    loss = mean over the target tokens of -log softmax(logits)[token]

A target's tokens end with the one that ends a text; the decoder reads the start and all of them but the last.

Letters: B rows, T tokens of the longest target, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.data.labels import NO_TARGET
from edgepeft.heads.base import Head

__all__ = ["Text", "decoder_inputs"]


class Text(Head):
    """What the decoder gives every word, at each of the tokens that it reads."""

    kind: ClassVar[str] = "text"
    source: ClassVar[str] = "Raffel et al., 2020, whose targets are text"
    places: ClassVar[Mapping[str, str]] = {}
    decodes: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """(B, T, v) as they are."""
        return pooled

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """None."""
        return 0


def decoder_inputs(targets: Tensor, start_token_id: int, pad_token_id: int) -> Tensor:
    """int64 [B, T], NO_TARGET past a row's end -> what the decoder reads to write them, [B, T]."""
    read = functional.pad(targets[:, :-1], (1, 0), value=start_token_id)
    return read.masked_fill(read == NO_TARGET, pad_token_id)

"""Prompt tuning from tokens (Lester et al., 2021, arXiv:2104.08691): [v_1 ... v_p; E], v_i the vocabulary's row i.

The Compacter paper's Prompt Tuning-T.  The rows are those of the pretrained table; the authors' code copies
them before the pretrained weights are loaded, and so starts from random ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from torch import Tensor, nn

from edgepeft.backbones.base import Architecture
from edgepeft.methods._prompt import Prompt, PromptTuning
from edgepeft.methods.base import require

__all__ = ["PromptT"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptT(PromptTuning):
    """A prompt that starts as the first tokens of the vocabulary."""

    name: ClassVar[str] = "prompt-t"
    title: ClassVar[str] = "Prompt tuning, from the vocabulary"
    learning_rate: ClassVar[float] = 3e-1
    learning_rate_source: ClassVar[str] = "Karimi Mahabadi et al., 2021, table 4"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.place == "words", "prompt-t starts from word embeddings: its place is words; prompt-r takes both.")

    def start(
        self, modules: Mapping[str, nn.Module], architecture: Architecture, read: Callable[[str], Tensor]
    ) -> None:
        """Copy the first p rows.

        Raises:
            UsageError: the vocabulary has fewer.
        """
        table = read(architecture.words)
        require(
            self.length <= len(table),
            f"prompt-t's length must be at most the vocabulary's size, {len(table)}; found {self.length}.",
        )
        for module in modules.values():
            assert isinstance(module, Prompt)
            module.vectors.data.copy_(table[: self.length])

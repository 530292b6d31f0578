"""Prompt tuning from tokens (Lester et al., 2021, arXiv:2104.08691): [v_1 ... v_p; E], v_i the vocabulary's row i.

The Compacter paper's Prompt Tuning-T.  The rows are those of the pretrained table; the authors' code copies
them before the pretrained weights are loaded, and so starts from random ones.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods.base import Method, ReadTensor, option, require

_MIN_TEXT = 3  # a token between two special ones


class Prompt(nn.Module):
    """The first p tokens' vectors replaced, [..., d] -> [..., d]."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(length, width).uniform_(-0.5, 0.5))

    def forward(self, y: Tensor, position: Tensor) -> Tensor:
        """``position`` [...] is each token's place within its row."""
        return first_replaced(y, position, self.vectors)


def first_replaced(y: Tensor, position: Tensor, vectors: Tensor) -> Tensor:
    """[..., d]: ``y``, and at the first p places of each row ``vectors`` [p, d]; ``position`` [...] within the row."""
    last = len(vectors) - 1
    return torch.where((position <= last).unsqueeze(-1), vectors[position.clamp(max=last)], y)


def require_room(method: str, length: int, architecture: Architecture) -> None:
    """See that so many placeholders leave positions for a text."""
    longest = architecture.max_length - _MIN_TEXT
    require(
        length <= longest,
        f"{method}'s length must be at most {longest}: this {architecture.model_type} has "
        f"{architecture.max_length} positions for prompt and text; found {length}.",
    )


class OfLength(nn.Module):
    """Knows p."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length


class MovedBack(OfLength):
    """Each token's vector is that of the token p places before it, [..., d] -> [..., d]; the first p keep theirs."""

    def forward(self, y: Tensor, position: Tensor) -> Tensor:
        """``position`` [...] is each token's place within its row."""
        place = torch.ones_like(position).cumsum(-1) - 1  # an arange makes torch.export take the rows for a constant
        source = place - self.length * (position >= self.length)
        return y.gather(-2, source.unsqueeze(-1).expand_as(y))


class PromptTuning(Method):
    """Base of both: p trained vectors in front of a text's word embeddings; a subclass says what they start from.

    The row really has p tokens more, which attention sees as any other: they are placeholder tokens in front of the
    text's own, whose embeddings are overwritten here, so that position embeddings and LayerNorm follow.  AdapterHub has
    them past both instead, and leaves the text at the positions that it has without a prompt.
    """

    paper = "Lester et al., 2021, arXiv:2104.08691"
    equation = "[v_1 ... v_p; E] for the word embeddings E"
    near_identity = False  # a fresh prompt moves the text and is attended to

    length: int = option(100, "vectors p in front of a text", least=1)
    place: Literal["words", "embeddings"] = option(
        "words", "words: positions and LayerNorm follow (Lester et al., PEFT); embeddings: past both (AdapterHub)"
    )

    def prompt_length(self, architecture: Architecture) -> int:
        return self.length

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        require_room(self.name, self.length, architecture)
        roles = {
            "words": (Role.WORD_EMBEDDINGS,),
            "embeddings": (Role.EMBEDDINGS, Role.POSITION_EMBEDDINGS),
        }[self.place]
        sites = architecture.sites_of(*roles)
        require(
            len(sites) == len(roles), f"{self.name} attaches to {', '.join(roles)}; {architecture.model_type} has none."
        )
        return sites

    def build_at(self, site: Site) -> nn.Module:
        """A prompt, or what leaves the text's positions as they were."""
        moved = site.role is Role.POSITION_EMBEDDINGS
        return MovedBack(self.length) if moved else Prompt(self.length, site.out_features)


class PromptT(PromptTuning):
    """A prompt that starts as the first tokens of the vocabulary."""

    name = "prompt-t"
    title = "Prompt tuning, from the vocabulary"
    learning_rate = 3e-1
    learning_rate_source = "Karimi Mahabadi et al., 2021, table 4"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.place == "words", "prompt-t starts from word embeddings: its place is words; prompt-r takes both.")

    def start(self, modules: Mapping[str, nn.Module], architecture: Architecture, read: ReadTensor) -> None:
        table = read(architecture.words)
        require(
            self.length <= len(table),
            f"prompt-t's length must be at most the vocabulary's size, {len(table)}; found {self.length}.",
        )
        for module in modules.values():
            assert isinstance(module, Prompt)
            module.vectors.data.copy_(table[: self.length])

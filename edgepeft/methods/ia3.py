"""(IA)^3 (Liu et al., 2022, arXiv:2205.05638, section 3.3): y' = l * y on keys, values and feed-forward activations.

    softmax(Q (l_k * K)^T / sqrt(d)) (l_v * V)    and    W2 (l_ff * act(W1 x))

l is a vector that starts as ones.  In an encoder-decoder the keys and values of cross-attention are scaled too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods.base import ChoosesRoles, option

__all__ = ["IA3", "ROLES", "Scale"]

ROLES = (
    Role.QUERY,
    Role.KEY,
    Role.VALUE,
    Role.ATTENTION_OUTPUT,
    Role.FFN_UP,
    Role.FFN_ACTIVATION,
    Role.FFN_OUTPUT,
)
_IN_CROSS_ATTENTION = {Role.KEY: Role.CROSS_KEY, Role.VALUE: Role.CROSS_VALUE}


class Scale(nn.Module):
    """l * y, [..., d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))  # so that a fresh delta is the identity

    def forward(self, y: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return y * self.scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class IA3(ChoosesRoles):
    """Learned scales of what flows through each layer."""

    name: ClassVar[str] = "ia3"
    title: ClassVar[str] = "(IA)^3"
    paper: ClassVar[str] = "Liu et al., 2022, arXiv:2205.05638"
    equation: ClassVar[str] = "l * y; y of keys, values, act(W1 x)"
    known_roles: ClassVar[tuple[Role, ...]] = ROLES
    learning_rate: ClassVar[float] = 3e-3
    learning_rate_source: ClassVar[str] = "Liu et al., the authors' code (configs/ia3.json), on T0"

    roles: tuple[str, ...] = option(("key", "value", "ffn_activation"), f"what is scaled, of {', '.join(ROLES)}")

    def attaches_to(self) -> tuple[Role, ...]:
        """The chosen values; of cross-attention, where there is one, the same."""
        chosen = super().attaches_to()
        return (*chosen, *(_IN_CROSS_ATTENTION[role] for role in chosen if role in _IN_CROSS_ATTENTION))

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        """One vector a site."""
        return {site.name: Scale(site.out_features) for site in sites}

    def n_at(self, site: Site) -> int:
        """The site's width: L (2 d + f) in all, by default."""
        return site.out_features

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The paper's three, and everything that can be scaled above the lowest layer."""
        return (cls(), cls(roles=tuple(map(str, ROLES)), skip_layers=1))

"""What the methods have in common that add something to the outputs of chosen linear layers, LoRA and its kin."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from edgepeft.backbones.base import LINEAR_ROLES, Role
from edgepeft.methods.base import ChoosesRoles, CrossAttention, crossed, require

__all__ = ["LinearUpdates", "RankedUpdates"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearUpdates(CrossAttention, ChoosesRoles):
    """Base of theirs: ``roles`` of linear layers, which a decoder's attention to its encoder may have too."""

    known_roles: ClassVar[tuple[Role, ...]] = LINEAR_ROLES

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.cross_attention or bool(self.attaches_across()),
            f"{self.name}'s cross_attention needs roles of attention; found {', '.join(self.roles)}.",
        )

    def attaches_across(self) -> tuple[Role, ...]:
        """The same linear layers as in self-attention, where it is asked for."""
        return crossed(self.attaches_to()) if self.cross_attention else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedUpdates(LinearUpdates):
    """Base of those of a rank, which are scaled by ``alpha`` / ``rank``."""

    rank: int
    alpha: float

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"{self.name}'s rank must be at least 1; found {self.rank}.")
        require(math.isfinite(self.alpha), f"{self.name}'s alpha must be a finite number; found {self.alpha}.")
        super().__post_init__()

    @property
    def scale(self) -> float:
        """What the update is multiplied by."""
        return self.alpha / self.rank

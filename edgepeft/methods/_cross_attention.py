"""A decoder's attention to its encoder as a place for modules; the papers' adapters do not stand there unless asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods.base import PerLayer, option, require

__all__ = ["CrossAttention", "crossed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossAttention(PerLayer):
    """Base of those that may adapt it."""

    cross_attention: bool = option(False, "a decoder's attention to its encoder too (AdapterHub's cross_adapter)")

    def attaches_across(self) -> tuple[Role, ...]:
        """Its output, where it is asked for."""
        return (Role.CROSS_ATTENTION_OUTPUT,) if self.cross_attention else ()

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        """As its base.

        Raises:
            UsageError: it is asked for, and there is none; or as its base.
        """
        require(
            not self.cross_attention or architecture.decoder is not None,
            f"{self.name}'s cross_attention is a decoder's to its encoder; this {architecture.model_type} has none.",
        )
        return super().sites(architecture)


def crossed(roles: Iterable[Role]) -> tuple[Role, ...]:
    """What these of self-attention are called in a decoder's attention to its encoder; the others left out."""
    return tuple(Role(f"cross_{role}") for role in roles if f"cross_{role}" in set(Role))

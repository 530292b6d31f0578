"""LoRA (Hu et al., 2021, arXiv:2106.09685, eq. 3): y' = y + (alpha / r) B A x.

x and y are a linear layer's input and output, y after the dropout that may follow it.
``rank_stabilised`` divides by sqrt(r) instead (Kalajdzievski, 2023, arXiv:2312.03732).
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import LINEAR_ROLES, Architecture, Role, Site
from edgepeft.common.errors import look_up
from edgepeft.methods.base import ChoosesRoles, CrossAttention, crossed, option, require
from edgepeft.methods.bitfit import BitFit


class LinearUpdates(CrossAttention, ChoosesRoles):
    """Base of methods that update linear layers, a decoder's attention to its encoder included where asked for."""

    known_roles = LINEAR_ROLES
    roles: tuple[str, ...] = option(("query", "value"), f"linear layers to update, of {', '.join(LINEAR_ROLES)}")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.cross_attention or bool(self.attaches_across()),
            f"{self.name}'s cross_attention needs roles of attention; found {', '.join(self.roles)}.",
        )

    def attaches_across(self) -> tuple[Role, ...]:
        return crossed(self.attaches_to()) if self.cross_attention else ()


class RankedUpdates(LinearUpdates):
    """Base of updates of a rank, scaled by ``alpha`` / ``rank``."""

    rank: int
    alpha: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.alpha), f"{self.name}'s alpha must be a finite number; found {self.alpha}.")
        super().__post_init__()

    @property
    def scale(self) -> float:
        """What the update is multiplied by."""
        return self.alpha / self.rank


class Factors(nn.Module):
    """scale B A; a subclass says what it is added to."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.A = nn.Parameter(torch.empty(rank, inputs))
        self.B = nn.Parameter(torch.zeros(outputs, rank))  # zero, so that a fresh delta is the identity
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # the authors' code; nn.Linear's own default

    def update(self, x: Tensor) -> Tensor:
        """scale B A x: [..., in] -> [..., out]; the scale is applied where the value is narrowest, (..., r)."""
        return functional.linear(functional.linear(x, self.A) * self.scale, self.B)


class LowRank(Factors):
    """y + scale B A x; x [..., in], y [..., out]."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return y + self.update(x)


class LoRA(RankedUpdates):
    """Low-rank updates of linear layers."""

    name = "lora"
    title = "LoRA"
    paper = "Hu et al., 2021, arXiv:2106.09685"
    equation = "y + (alpha / r) B A x"
    learning_rate = 1.5e-3
    learning_rate_source = "measured, docs/methods.md; Hu et al., table 9 (RoBERTa-base): 5e-4"

    rank: int = option(8, "r", least=1)
    alpha: float = option(16.0, "the update is scaled by alpha / r")
    rank_stabilised: bool = option(False, "scale by alpha / sqrt(r) (Kalajdzievski, 2023)")
    bias: Literal["none", "all", "lora_only"] = option(
        "none", "biases trained besides (the authors' mark_only_lora_as_trainable): all, or the updated layers' own"
    )
    whole: tuple[str, ...] = option((), "tensors trained whole besides, by their names: pooler.dense.weight")

    module: ClassVar[type[Factors]] = LowRank

    @property
    def scale(self) -> float:
        return self.alpha / math.sqrt(self.rank) if self.rank_stabilised else super().scale

    def build_at(self, site: Site) -> nn.Module:
        return self.module(site.in_features, site.out_features, self.rank, self.scale)

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        known = {**architecture.tensors, **architecture.pooler}
        for name in self.whole:
            look_up(f"tensor of a {architecture.model_type}", name, known)
        biases: tuple[str, ...] = ()
        if self.bias == "all":
            biases = BitFit().overrides(architecture)
        elif self.bias == "lora_only":
            biases = tuple(dict.fromkeys(f"{site.reads}.bias" for site in self.sites(architecture)))
        return tuple(dict.fromkeys((*biases, *self.whole)))

"""Adapters whose weights are products of factors: what the methods of the Compacter paper share.

    y' = y + up(act(down(y))),  each linear layer being  x W^T + b,  W = f(factors)

The factors are what is trained, saved and shipped, so that a task's file stays small.  W does not depend
on x: in a delta graph it hangs from constants alone, ONNX Runtime folds it when it opens the file, and
what runs is a plain adapter.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods._activations import Activation
from edgepeft.methods._bottleneck_adapters import FORMS, Form
from edgepeft.methods.base import ChoosesRoles, TrainsNorms, option, require

__all__ = ["FactoredAdapters", "FactoredLinear", "xavier_uniform"]


class FactoredLinear(nn.Module):
    """x W^T + b, [..., in] -> [..., out]; a subclass makes W of its factors."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    @abstractmethod
    def weight(self) -> Tensor:
        """W, [out, in]."""

    def forward(self, x: Tensor) -> Tensor:
        """One product, by the weight as a whole."""
        return functional.linear(x, self.weight(), self.bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactoredAdapters(TrainsNorms, ChoosesRoles):
    """Adapters at Houlsby's places, LN(sub + A(sub) + res) (eq. 2); a subclass says what their linear layers are."""

    known_roles: ClassVar[tuple[Role, ...]] = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)
    learning_rate: ClassVar[float] = 3e-3
    learning_rate_source: ClassVar[str] = "Karimi Mahabadi et al., table 4"

    bottleneck: int = option(24, "width m of the adapter")
    roles: tuple[str, ...] = option(("attention_output", "ffn_output"), "sub-layers whose outputs are adapted")
    reads: Form = option(
        "sublayer", "what A reads: sublayer, its output; norm, LN(sub + res) (AdapterHub's compacter++)"
    )
    activation: Activation = option("tanh-gelu", "act (the authors' code)")
    norms: bool = option(True, "train every LayerNorm too (as the Compacter paper does)")

    def __post_init__(self) -> None:
        require(self.bottleneck >= 1, f"{self.name}'s bottleneck must be at least 1; found {self.bottleneck}.")
        super().__post_init__()

    @abstractmethod
    def linears(self) -> Callable[[int, int], FactoredLinear]:
        """A maker of fresh layers from (in, out); what it makes may share parameters."""

    @abstractmethod
    def n_factors(self, inputs: int, outputs: int) -> int:
        """Parameters of one weight's own factors."""

    def n_shared(self) -> int:
        """Parameters that all weights share."""
        return 0

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        """One adapter a site."""
        linear, m, form = self.linears(), self.bottleneck, FORMS[self.reads]
        widths = {site.name: site.out_features for site in sites}
        return {name: form(linear(d, m), linear(m, d), self.activation) for name, d in widths.items()}

    def n_at(self, site: Site) -> int:
        """Both weights' own factors, m + d."""
        d, m = site.out_features, self.bottleneck
        return self.n_factors(d, m) + self.n_factors(m, d) + m + d

    def n_parameters(self, architecture: Architecture) -> int:
        """The adapters, what they share, and the LayerNorms."""
        return super().n_parameters(architecture) + self.n_shared()


def xavier_uniform(*shape: int) -> nn.Parameter:
    """A fresh factor: Xavier-uniform with gain sqrt 2, each matrix of the last two axes for itself."""
    factor = nn.Parameter(torch.empty(*shape))
    for matrix in factor.data.view(-1, *shape[-2:]):
        nn.init.xavier_uniform_(matrix, gain=math.sqrt(2))
    return factor

"""Compacter and PHM adapters (Karimi Mahabadi et al., 2021, arXiv:2106.04647): weights are sums of Kronecker products.

    y' = y + up(gelu(down(y))),  each layer being  x H + b
    PHM (eq. 4)         H = sum_i kron(A_i, B_i)       A [n, n, n] and B [n, in/n, out/n] are each layer's own
    Compacter (eq. 5)   H = sum_i kron(A_i, s_i t_i)   one A serves every layer of every adapter; s [n, in/n, r] and
                                                       t [n, r, out/n] are each layer's own

Twice a layer, at Houlsby's places; Compacter++ (section 5.2) after the feed-forward only.  Every LayerNorm is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Self

from torch import Tensor, nn

from edgepeft.methods._adapters import (
    FactoredLinear,
    KroneckerAdapters,
    fresh_rule,
    kronecker_sum,
    xavier_uniform,
)
from edgepeft.methods.base import option, require

__all__ = ["PHM", "Compacter", "CompacterPlusPlus", "LPHMLinear", "PHMLinear"]


class PHMLinear(FactoredLinear):
    """x H + b."""

    def __init__(self, inputs: int, outputs: int, *, n: int, std: float) -> None:
        super().__init__(outputs)
        self.A = fresh_rule(n, std)
        self.B = xavier_uniform(n, inputs // n, outputs // n)

    def weight(self) -> Tensor:
        """H^T of eq. 4."""
        return kronecker_sum(self.A, self.B)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PHM(KroneckerAdapters):
    """Adapters of hypercomplex layers."""

    name: ClassVar[str] = "phm"
    title: ClassVar[str] = "PHM adapter"
    paper: ClassVar[str] = "Karimi Mahabadi et al., 2021, arXiv:2106.04647"
    equation: ClassVar[str] = "LN(sub + A(sub) + res), W = sum_i kron(A_i, B_i)"

    n: int = option(4, "terms of the sum; divides the hidden size and the bottleneck (the paper tries 4, 8, 12)")
    std: float = option(0.01, "of A's normal init (authors' code)")

    def linears(self) -> Callable[[int, int], FactoredLinear]:
        """Layers that share nothing."""
        return partial(PHMLinear, n=self.n, std=self.std)

    def n_factors(self, inputs: int, outputs: int) -> int:
        """n^3 + in out / n."""
        return self.n**3 + inputs * outputs // self.n

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The paper's n, and another in one place, with frozen norms."""
        return (cls(bottleneck=8), cls(bottleneck=6, n=2, roles=("attention_output",), reads="norm", norms=False))


class LPHMLinear(FactoredLinear):
    """x H + b, by a rule that is given."""

    def __init__(self, inputs: int, outputs: int, *, rule: nn.Parameter, rank: int) -> None:
        super().__init__(outputs)
        n = len(rule)
        self.A = rule
        self.s, self.t = xavier_uniform(n, inputs // n, rank), xavier_uniform(n, rank, outputs // n)

    def weight(self) -> Tensor:
        """H^T of eq. 5."""
        return kronecker_sum(self.A, self.s @ self.t)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compacter(KroneckerAdapters):
    """Adapters of low-rank hypercomplex layers."""

    name: ClassVar[str] = "compacter"
    title: ClassVar[str] = "Compacter"
    paper: ClassVar[str] = "Karimi Mahabadi et al., 2021, arXiv:2106.04647"
    equation: ClassVar[str] = "LN(sub + A(sub) + res), W = sum_i kron(A_i, s_i t_i)"

    n: int = option(4, "terms of the sum; divides the hidden size and the bottleneck")
    rank: int = option(1, "r of the second factors")
    std: float = option(1e-4, "of A's normal init (authors' code)")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rank >= 1, f"{self.name}'s rank must be at least 1; found {self.rank}.")

    def linears(self) -> Callable[[int, int], FactoredLinear]:
        """Layers that share one A."""
        return partial(LPHMLinear, rule=fresh_rule(self.n, self.std), rank=self.rank)

    def n_factors(self, inputs: int, outputs: int) -> int:
        """r (in + out)."""
        return self.rank * (inputs + outputs)

    def n_shared(self) -> int:
        """n^3."""
        return self.n**3

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The paper's rank, and a higher one with another n and frozen norms."""
        return (cls(bottleneck=8), cls(bottleneck=6, n=2, rank=3, norms=False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompacterPlusPlus(Compacter):
    """Compacter once a layer."""

    name: ClassVar[str] = "compacter++"
    title: ClassVar[str] = "Compacter++"
    equation: ClassVar[str] = "LN(sub + A(sub) + res) after the FFN, W = sum_i kron(A_i, s_i t_i)"

    roles: tuple[str, ...] = option(("ffn_output",), "sub-layers whose outputs are adapted")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """The paper's rank, and AdapterHub's form of it with a higher one, another n and frozen norms."""
        return (cls(bottleneck=8), cls(bottleneck=6, n=2, rank=3, reads="norm", activation="gelu", norms=False))

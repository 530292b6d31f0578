"""Sums of Kronecker products (Zhang et al., 2021, arXiv:2102.08597): W^T = sum_i kron(A_i, B_i).

Letters: n terms; A [n, n, n], the rule; B [n, in/n, out/n].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture, Site
from edgepeft.errors import UsageError
from edgepeft.methods._factored_adapters import FactoredAdapters
from edgepeft.methods.base import require

__all__ = ["KroneckerAdapters", "fresh_rule", "kronecker_sum"]


def kronecker_sum(rule: Tensor, terms: Tensor) -> Tensor:
    """W, [out, in], from A and B."""
    n, rows, columns = terms.shape
    blocks = torch.einsum("iab,ice->beac", rule, terms)  # (n, out/n, n, in/n)
    return blocks.reshape(n * columns, n * rows)


def fresh_rule(n: int, std: float) -> nn.Parameter:
    """A, normal."""
    rule = nn.Parameter(torch.empty(n, n, n))
    nn.init.normal_(rule, std=std)
    return rule


class KroneckerAdapters(FactoredAdapters):
    """Base of the methods whose weights are such sums."""

    n: int
    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_n(self.name, self.n, self.bottleneck)
        require(self.std > 0, f"{self.name}'s std must be positive; found {self.std}.")

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        """The sub-layers' outputs.

        Raises:
            UsageError: n does not divide the backbone's hidden size; or as its base.
        """
        _check_hidden(self.name, self.n, self.bottleneck, architecture.hidden_size)
        return super().sites(architecture)


def _check_n(method: str, n: int, bottleneck: int) -> None:
    """Check that n divides the bottleneck.

    Raises:
        UsageError: it does not; names the nearest of both that fit.
    """
    require(n >= 1, f"{method}'s n must be at least 1; found {n}.")
    if bottleneck % n:
        fitting = ", ".join(map(str, _nearest_divisors(n, bottleneck)))
        widths = ", ".join(map(str, _nearest_multiples(n, bottleneck)))
        raise UsageError(
            f"{method}'s n must divide the bottleneck, {bottleneck}; found {n}. "
            f"Nearest n that do: {fitting}; nearest bottlenecks that n={n} divides: {widths}."
        )


def _check_hidden(method: str, n: int, bottleneck: int, hidden: int) -> None:
    """Check that n divides the backbone's hidden size.

    Raises:
        UsageError: it does not; names the nearest n that do, with a bottleneck that each divides.
    """
    if hidden % n:
        nearest = ((fitting, _nearest_multiples(fitting, bottleneck)[0]) for fitting in _nearest_divisors(n, hidden))
        offers = ", ".join(f"n={fitting} with bottleneck={width}" for fitting, width in nearest)
        raise UsageError(
            f"{method}'s n must divide the backbone's hidden size, {hidden}; found {n}. Nearest: {offers}."
        )


def _nearest_divisors(n: int, of: int) -> list[int]:
    """The largest divisor below n and the smallest above it, as far as there are."""
    small = [i for i in range(1, math.isqrt(of) + 1) if of % i == 0]
    divisors = sorted({*small, *(of // i for i in small)})
    return [i for i in divisors if i < n][-1:] + [i for i in divisors if i > n][:1]


def _nearest_multiples(n: int, width: int) -> list[int]:
    """The multiples of n on both sides of a width, the nearer first; 0 is none."""
    below = width // n * n
    return sorted((multiple for multiple in (below, below + n) if multiple), key=lambda m: abs(m - width))

"""Sums of Kronecker products (Zhang et al., 2021, arXiv:2102.08597): W^T = sum_i kron(A_i, B_i), and the n they can have.

Letters: n terms; A [n, n, n], the rule; B [n, in/n, out/n].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edgepeft.methods.base import require

__all__ = ["check_hidden", "check_n", "fresh_rule", "kronecker_sum"]


def kronecker_sum(rule: Tensor, terms: Tensor) -> Tensor:
    """W, [out, in], from A and B: one product, whose axes are then put in order."""
    n, rows, columns = terms.shape
    products = rule.flatten(1).T @ terms.flatten(1)  # (n n, in/n out/n): A[i, a, b] B[i, c, e] summed over i
    return products.view(n, n, rows, columns).permute(1, 3, 0, 2).reshape(n * columns, n * rows)


def fresh_rule(n: int, std: float) -> nn.Parameter:
    """A, normal."""
    rule = nn.Parameter(torch.empty(n, n, n))
    nn.init.normal_(rule, std=std)
    return rule


def check_n(method: str, n: int, bottleneck: int) -> None:
    """See that n divides the bottleneck.

    Raises:
        UsageError: it does not; names the nearest of both that fit.
    """
    require(n >= 1, f"{method}'s n must be at least 1; found {n}.")
    fitting = ", ".join(map(str, _nearest_divisors(n, bottleneck)))
    widths = ", ".join(map(str, _nearest_multiples(n, bottleneck)))
    require(
        bottleneck % n == 0,
        f"{method}'s n must divide the bottleneck, {bottleneck}; found {n}. "
        f"Nearest n that do: {fitting}; nearest bottlenecks that n={n} divides: {widths}.",
    )


def check_hidden(method: str, n: int, bottleneck: int, hidden: int) -> None:
    """See that n divides the backbone's hidden size.

    Raises:
        UsageError: it does not; names the nearest n that do, with a bottleneck that each divides.
    """
    offers = (
        f"n={fitting} with bottleneck={_nearest_multiples(fitting, bottleneck)[0]}"
        for fitting in _nearest_divisors(n, hidden)
    )
    require(
        hidden % n == 0,
        f"{method}'s n must divide the backbone's hidden size, {hidden}; found {n}. Nearest: {', '.join(offers)}.",
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

"""Compacter (Karimi Mahabadi et al., 2021, arXiv:2106.04647, eq. 5): Kronecker products of shared and low-rank factors.

    y' = y + up(gelu(down(y))),  each layer being  x H + b,  H = sum_i kron(A_i, s_i t_i)

One A [n, n, n] serves every layer of every adapter; s [n, in/n, r] and t [n, r, out/n] are each layer's
own.  Twice a layer, at Houlsby's places; every LayerNorm is trained too.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from edgepeft.methods._adapters import FactoredLinear, KroneckerAdapters, fresh_rule, kronecker_sum, xavier_uniform
from edgepeft.methods.base import option


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


class Compacter(KroneckerAdapters):
    """Adapters of low-rank hypercomplex layers."""

    name = "compacter"
    title = "Compacter"
    equation = "LN(sub + A(sub) + res), W = sum_i kron(A_i, s_i t_i)"

    n: int = option(4, "terms of the sum; divides the hidden size and the bottleneck", least=1)
    rank: int = option(1, "r of the second factors", least=1)
    std: float = option(1e-4, "of A's normal init (authors' code)", positive=True)

    def linears(self) -> Callable[[int, int], FactoredLinear]:
        return partial(LPHMLinear, rule=fresh_rule(self.n, self.std), rank=self.rank)

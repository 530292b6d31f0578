"""PHM adapters (Karimi Mahabadi et al., 2021, arXiv:2106.04647, eq. 4): weights are sums of Kronecker products.

    y' = y + up(gelu(down(y))),  each layer being  x H + b,  H = sum_i kron(A_i, B_i)

A [n, n, n] and B [n, in/n, out/n] are each layer's own.  Twice a layer, at Houlsby's places; every
LayerNorm is trained too.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from edgepeft.methods._adapters import FactoredLinear, KroneckerAdapters, fresh_rule, kronecker_sum, xavier_uniform
from edgepeft.methods.base import option


class PHMLinear(FactoredLinear):
    """x H + b."""

    def __init__(self, inputs: int, outputs: int, *, n: int, std: float) -> None:
        super().__init__(outputs)
        self.A = fresh_rule(n, std)
        self.B = xavier_uniform(n, inputs // n, outputs // n)

    def weight(self) -> Tensor:
        """H^T of eq. 4."""
        return kronecker_sum(self.A, self.B)


class PHM(KroneckerAdapters):
    """Adapters of hypercomplex layers."""

    name = "phm"
    title = "PHM adapter"
    equation = "LN(sub + A(sub) + res), W = sum_i kron(A_i, B_i)"

    n: int = option(
        4, "terms of the sum; divides the hidden size and the bottleneck (the paper tries 4, 8, 12)", least=1
    )
    std: float = option(0.01, "of A's normal init (authors' code)", positive=True)

    def linears(self) -> Callable[[int, int], FactoredLinear]:
        return partial(PHMLinear, n=self.n, std=self.std)

"""Adapter-LowRank (Karimi Mahabadi et al., 2021, arXiv:2106.04647, section 5.1): adapters of rank-1 weights.

    y' = y + up(gelu(down(y))),  each layer being  x (u v) + b,  u [in, r], v [r, out]

Twice a layer, at Houlsby's places; every LayerNorm is trained too.  The paper's baseline: its init is of
full size, so that a fresh adapter is not the identity.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from edgepeft.methods._adapters import FactoredAdapters, FactoredLinear, xavier_uniform
from edgepeft.methods.base import option


class LowRankLinear(FactoredLinear):
    """x (u v) + b."""

    def __init__(self, inputs: int, outputs: int, *, rank: int) -> None:
        super().__init__(outputs)
        self.u, self.v = xavier_uniform(inputs, rank), xavier_uniform(rank, outputs)

    def weight(self) -> Tensor:
        return (self.u @ self.v).T


class AdapterLowRank(FactoredAdapters):
    """Adapters of low-rank weights."""

    name = "adapter-lowrank"
    title = "Adapter-LowRank"
    equation = "LN(sub + A(sub) + res), W = u v"
    near_identity = False

    rank: int = option(1, "r of every weight", least=1)

    def linears(self) -> Callable[[int, int], FactoredLinear]:
        return partial(LowRankLinear, rank=self.rank)

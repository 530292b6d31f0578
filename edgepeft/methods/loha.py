"""LoHa (Hyeon-Woo et al., 2022, arXiv:2108.06098, proposition 1): y' = y + s (X1 Y1^T) o (X2 Y2^T) x, s = alpha / r.

o multiplies entry by entry: two products of rank r give one of rank r^2 at most.  It is FedPara in the paper, LoHa in
LyCORIS and PEFT, where X1, X2 [out, r] are ``w1_a``, ``w2_a`` and Y1^T, Y2^T [r, in] are ``w1_b``, ``w2_b``.

A product of two sums is the sum of r^2 products, so that where this is less work

    (X1 Y1^T) o (X2 Y2^T) = X Y^T,  X [out, r^2] = all X1_i o X2_j,  Y [in, r^2] = all Y1_i o Y2_j

is computed, as a LoRA of rank r^2.  The factors are what is trained and shipped; what does not depend on x hangs from
constants alone in a delta graph, and is computed once when it is opened.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.methods.base import option
from edgepeft.methods.lora import RankedUpdates


class HadamardProduct(nn.Module):
    """y + s (w1_a w1_b) o (w2_a w2_b) x; x [..., in], y [..., out]."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale, self.as_rows = scale, rank * rank * (inputs + outputs) < inputs * outputs
        self.w1_a, self.w2_a = (nn.Parameter(torch.empty(outputs, rank)) for _ in range(2))
        self.w1_b, self.w2_b = (nn.Parameter(torch.empty(rank, inputs)) for _ in range(2))
        for factor in (self.w1_a, self.w1_b, self.w2_a):
            nn.init.kaiming_uniform_(factor, a=math.sqrt(5))  # as PEFT starts them
        nn.init.zeros_(self.w2_b)  # so that a fresh delta is the identity

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        if not self.as_rows:
            return y + functional.linear(x, self.scale * (self.w1_a @ self.w1_b) * (self.w2_a @ self.w2_b))
        down = (self.w1_b.unsqueeze(1) * self.w2_b).flatten(0, 1)  # (r^2, in)
        up = (self.w1_a.unsqueeze(2) * self.w2_a.unsqueeze(1)).flatten(1)  # (out, r^2)
        return y + functional.linear(functional.linear(x, down) * self.scale, up)


class LoHa(RankedUpdates):
    """Updates of linear layers by Hadamard products."""

    name = "loha"
    title = "LoHa"
    paper = "Hyeon-Woo et al., 2022, arXiv:2108.06098"
    equation = "y + (alpha / r) (X1 Y1^T) o (X2 Y2^T) x"
    learning_rate = 4.5e-3
    learning_rate_source = (
        "measured, docs/methods.md; PEFT's method_comparison/MetaMathQA has no rate of its own for it"
    )

    rank: int = option(4, "r of each of the two products", least=1)
    alpha: float = option(4.0, "the update is scaled by alpha / r")

    def build_at(self, site: Site) -> nn.Module:
        return HadamardProduct(site.in_features, site.out_features, self.rank, self.scale)

"""LoKr (Yeh et al., 2024, arXiv:2309.14859, section 3.2): y' = y + s (W1 (x) W2) x, s = alpha / r.

(x) is Kronecker's product of W1 [h, m] and W2 [k, n], where out = h k and in = m n.  It is never made: of x as a matrix
X [m, n] the update is the matrix W1 X W2^T [h, k], row by row.  W2 is a product of two factors of rank r where r is
less than half of its larger side, and whole otherwise; with ``both`` W1 too.  PEFT and LyCORIS choose so.

What does not depend on x hangs from constants alone in a delta graph, and is computed once when it is opened.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.methods.base import option, require
from edgepeft.methods.lora import RankedUpdates

_NEAR_THE_ROOT = -1


class KroneckerProduct(nn.Module):
    """y + s (w1 (x) w2) x; x [..., in], y [..., out].  ``shapes`` are of w1 and w2, or of the factors w1_a and w1_b."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]], scale: float) -> None:
        super().__init__()
        self.scale = scale
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        first, *others = self.parameters()
        nn.init.zeros_(first)  # so that a fresh delta is the identity
        for other in others:
            nn.init.kaiming_uniform_(other, a=math.sqrt(5))  # as PEFT starts them

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        own = dict(self.named_parameters())
        w1, w2 = (own[name] if name in own else own[f"{name}_a"] @ own[f"{name}_b"] for name in ("w1", "w2"))
        rows = functional.linear(x.reshape(*x.shape[:-1], w1.shape[1], w2.shape[1]), w2)  # (..., m, k)
        made = functional.linear(rows.transpose(-1, -2), self.scale * w1)  # (..., k, h)
        return y + made.transpose(-1, -2).flatten(-2)


class LoKr(RankedUpdates):
    """Updates of linear layers by Kronecker products."""

    name = "lokr"
    title = "LoKr"
    paper = "Yeh et al., 2024, arXiv:2309.14859"
    equation = "y + (alpha / r) (W1 (x) W2) x, W2 = W2_a W2_b"
    learning_rate = 3e-3
    learning_rate_source = (
        "PEFT's method_comparison/MetaMathQA (lokr, rank 32, factor 4, Llama-3.2-3B); not measured on encoders"
    )

    rank: int = option(8, "r of W2", least=1)
    alpha: float = option(8.0, "the update is scaled by alpha / r")
    both: bool = option(False, "W1 too is a product of rank r, where that is smaller (PEFT's decompose_both)")
    factor: int = option(
        _NEAR_THE_ROOT,
        "W1's sides if they divide the layer's, else what is next below (PEFT's decompose_factor); -1: near the roots",
    )

    def __post_init__(self) -> None:
        known = self.factor >= 1 or self.factor == _NEAR_THE_ROOT
        require(known, f"lokr's factor must be at least 1, or -1 for what is near the roots; found {self.factor}.")
        super().__post_init__()

    def build_at(self, site: Site) -> nn.Module:
        (m, n), (h, k) = (_two_sides(width, self.factor) for width in (site.in_features, site.out_features))
        shapes = self._parts("w1", h, m, parted=self.both) | self._parts("w2", k, n, parted=True)
        return KroneckerProduct(shapes, self.scale)

    def _parts(self, name: str, rows: int, columns: int, *, parted: bool) -> dict[str, tuple[int, int]]:
        if parted and 2 * self.rank < max(rows, columns):
            return {f"{name}_a": (rows, self.rank), f"{name}_b": (self.rank, columns)}
        return {name: (rows, columns)}


def _two_sides(width: int, factor: int) -> tuple[int, int]:
    """Two numbers whose product is ``width``, as PEFT chooses them (``factorization`` of its LoKr)."""
    if factor > 0 and width % factor == 0:
        return factor, width // factor
    root = math.isqrt(width)
    most = root if factor == _NEAR_THE_ROOT else min(factor, root)
    side = next(side for side in range(most, 0, -1) if width % side == 0)
    return side, width // side

"""Bottleneck adapters, y' = y + up(act(down(z))): where z comes from, and layers that are products of factors.

In a factored adapter (the methods of the Compacter paper) each linear layer is  x W^T + b,  W = f(factors).  The
factors are what is trained, saved and shipped, so that a task's file stays small.  W does not depend on x: in a delta
graph it hangs from constants alone, ONNX Runtime folds it when it opens the file, and what runs is a plain adapter.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import ChoosesRoles, CrossAttention, TrainsNorms, option

Activation = Literal[
    "relu", "gelu", "tanh-gelu", "quick-gelu", "silu", "mish", "tanh", "sigmoid", "relu6", "leaky-relu", "linear"
]


# What adapters may have; ONNX's standard operators express each of them.
ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh-gelu": partial(functional.gelu, approximate="tanh"),
    "quick-gelu": lambda z: z * torch.sigmoid(1.702 * z),  # Hendrycks & Gimpel, 2016, section 2
    "silu": functional.silu,  # also called swish
    "mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": functional.relu6,
    "leaky-relu": functional.leaky_relu,  # slope 0.01
    "linear": lambda z: z,
}


class Bottleneck(nn.Module):
    """Holds A; a subclass places it."""

    def __init__(self, down: nn.Module, up: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.down, self.act, self.up = down, ACTIVATIONS[activation], up

    def change(self, z: Tensor) -> Tensor:
        """A(z), [..., d] -> [..., d]."""
        return self.up(self.act(self.down(z)))


class OnSubLayer(Bottleneck):
    """y + A(y)."""

    def forward(self, y: Tensor) -> Tensor:
        """[..., d] -> [..., d]; y is the sub-layer's output."""
        return y + self.change(y)


class OnNorm(Bottleneck):
    """y + A(LN(y + residual)); the layer then computes LN of this + residual."""

    def forward(self, y: Tensor, residual: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """All [..., d]; ``norm`` is the LayerNorm after the sum."""
        return y + self.change(norm(y + residual))


class BottleneckMethod(TrainsNorms, CrossAttention):
    """Base of the methods whose modules are bottlenecks of whole linear layers."""

    bottleneck: int = option(64, "width m of the adapter", least=1)
    activation: Activation = option("relu", "act")
    norms: bool = option(False, "train every LayerNorm of the backbone too")
    std: float = option(0.02, "of the normal init", positive=True)

    def fill(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.std)

    def linears(self, hidden: int, width: int | None = None) -> tuple[nn.Linear, nn.Linear]:
        """Fresh ways down to ``width``, by default the bottleneck, and up again; biases are zero."""
        width = width or self.bottleneck
        made = nn.Linear(hidden, width), nn.Linear(width, hidden)
        for linear in made:
            self.fill(linear.weight)
            nn.init.zeros_(linear.bias)
        return made


class FactoredLinear(nn.Module):
    """x W^T + b, [..., in] -> [..., out]; a subclass makes W of its factors."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    @abstractmethod
    def weight(self) -> Tensor:
        """W, [out, in]."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight(), self.bias)


class FactoredAdapters(TrainsNorms, CrossAttention, ChoosesRoles):
    """Adapters at Houlsby's places, LN(sub + A(sub) + res) (eq. 2); a subclass says what their linear layers are."""

    paper = "Karimi Mahabadi et al., 2021, arXiv:2106.04647"
    known_roles = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)
    learning_rate = 3e-3
    learning_rate_source = "Karimi Mahabadi et al., table 4"

    bottleneck: int = option(24, "width m of the adapter", least=1)
    roles: tuple[str, ...] = option(("attention_output", "ffn_output"), "sub-layers whose outputs are adapted")
    reads: Literal["sublayer", "norm"] = option(
        "sublayer", "what A reads: sublayer, its output; norm, LN(sub + res) (AdapterHub's compacter++)"
    )
    activation: Activation = option("tanh-gelu", "act (the authors' code)")
    norms: bool = option(True, "train every LayerNorm too (as the Compacter paper does)")

    @abstractmethod
    def linears(self) -> Callable[[int, int], FactoredLinear]:
        """A maker of fresh layers from (in, out); what it makes may share parameters."""

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        linear, m, form = self.linears(), self.bottleneck, OnNorm if self.reads == "norm" else OnSubLayer
        widths = {site.name: site.out_features for site in sites}
        return {name: form(linear(d, m), linear(m, d), self.activation) for name, d in widths.items()}


def xavier_uniform(*shape: int) -> nn.Parameter:
    """A fresh factor: Xavier-uniform with gain sqrt 2, each matrix of the last two axes for itself."""
    factor = nn.Parameter(torch.empty(*shape))
    for matrix in factor.data.view(-1, *shape[-2:]):
        nn.init.xavier_uniform_(matrix, gain=math.sqrt(2))
    return factor


def kronecker_sum(rule: Tensor, terms: Tensor) -> Tensor:
    """W, [out, in], from A and B."""
    n, rows, columns = terms.shape
    blocks = torch.einsum("iab,ice->beac", rule, terms)  # (n, out/n, n, in/n)
    return blocks.reshape(n * columns, n * rows)


def fresh_rule(n: int, std: float) -> nn.Parameter:
    """A, normal."""
    return nn.Parameter(torch.empty(n, n, n).normal_(std=std))


class KroneckerAdapters(FactoredAdapters):
    """Base of methods whose weights are sums of Kronecker products (Zhang et al., 2021, arXiv:2102.08597).

    W^T = sum_i kron(A_i, B_i), n terms; A [n, n, n] is the rule, B [n, in/n, out/n].
    """

    n: int
    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bottleneck % self.n:
            fitting = ", ".join(map(str, _nearest_divisors(self.n, self.bottleneck)))
            widths = ", ".join(map(str, _nearest_multiples(self.n, self.bottleneck)))
            raise UsageError(
                f"{self.name}'s n must divide the bottleneck, {self.bottleneck}; found {self.n}. "
                f"Nearest n that do: {fitting}; nearest bottlenecks that n={self.n} divides: {widths}."
            )

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        if architecture.hidden_size % self.n:
            nearest = (
                (fitting, _nearest_multiples(fitting, self.bottleneck)[0])
                for fitting in _nearest_divisors(self.n, architecture.hidden_size)
            )
            offers = ", ".join(f"n={fitting} with bottleneck={width}" for fitting, width in nearest)
            raise UsageError(
                f"{self.name}'s n must divide the backbone's hidden size, {architecture.hidden_size}; found {self.n}. "
                f"Nearest: {offers}."
            )
        return super().sites(architecture)


def _nearest_divisors(n: int, of: int) -> list[int]:
    """The largest divisor below n and the smallest above it, as far as there are."""
    small = [i for i in range(1, math.isqrt(of) + 1) if of % i == 0]
    divisors = sorted({*small, *(of // i for i in small)})
    return [i for i in divisors if i < n][-1:] + [i for i in divisors if i > n][:1]


def _nearest_multiples(n: int, width: int) -> list[int]:
    """The multiples of n on both sides of a width, the nearer first; 0 is none."""
    below = width // n * n
    return sorted((multiple for multiple in (below, below + n) if multiple), key=lambda m: abs(m - width))

"""What all bottleneck adapters are made of: A(z) = up(act(down(z))), and the two places where z comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.methods._cross_attention import CrossAttention
from edgepeft.methods.base import TrainsNorms, require

__all__ = [
    "ACTIVATIONS",
    "FORMS",
    "Activation",
    "Bottleneck",
    "BottleneckMethod",
    "Form",
    "OnNorm",
    "OnSubLayer",
    "fresh_linears",
]

Form = Literal["sublayer", "norm"]


Activation = Literal[
    "relu", "gelu", "tanh-gelu", "quick-gelu", "silu", "mish", "tanh", "sigmoid", "relu6", "leaky-relu", "linear"
]


def _quick_gelu(z: Tensor) -> Tensor:
    """z sigmoid(1.702 z) (Hendrycks & Gimpel, 2016, section 2)."""
    return z * torch.sigmoid(1.702 * z)


def _linear(z: Tensor) -> Tensor:
    return z


# What adapters may have; ONNX's standard operators express each of them.
ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh-gelu": partial(functional.gelu, approximate="tanh"),
    "quick-gelu": _quick_gelu,
    "silu": functional.silu,  # also called swish
    "mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": functional.relu6,
    "leaky-relu": functional.leaky_relu,  # slope 0.01
    "linear": _linear,
}


class Bottleneck(nn.Module):
    """Holds A; a subclass places it."""

    def __init__(self, down: nn.Module, up: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.down, self.act, self.up = down, ACTIVATIONS[activation], up

    def change(self, z: Tensor) -> Tensor:
        """A(z), [..., d] -> [..., d]."""
        changed: Tensor = self.up(self.act(self.down(z)))
        return changed


def fresh_linears(hidden: int, bottleneck: int, start: Callable[[Tensor], object]) -> tuple[nn.Linear, nn.Linear]:
    """The way down and the way up, their weights by ``start``, biases zero."""
    linears = nn.Linear(hidden, bottleneck), nn.Linear(bottleneck, hidden)
    for linear in linears:
        start(linear.weight)
        nn.init.zeros_(linear.bias)
    return linears


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


# What A reads -> the module.
FORMS: Mapping[Form, type[Bottleneck]] = {"sublayer": OnSubLayer, "norm": OnNorm}


class BottleneckMethod(TrainsNorms, CrossAttention):
    """Base of the methods whose modules are bottlenecks of whole linear layers."""

    bottleneck: int
    std: float

    def __post_init__(self) -> None:
        require(self.bottleneck >= 1, f"{self.name}'s bottleneck must be at least 1; found {self.bottleneck}.")
        require(self.std > 0, f"{self.name}'s std must be positive; found {self.std}.")

    def n_at(self, site: Site) -> int:
        """2 m d + m + d."""
        d, m = site.out_features, self.bottleneck
        return 2 * m * d + m + d

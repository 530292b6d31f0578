"""What all bottleneck adapters are made of: A(z) = up(act(down(z))), and the two places where z comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor, nn

from edgepeft.methods._activations import ACTIVATIONS, Activation

__all__ = ["FORMS", "Bottleneck", "Form", "OnNorm", "OnSubLayer"]

Form = Literal["sublayer", "norm"]


class Bottleneck(nn.Module):
    """Holds A; a subclass places it."""

    def __init__(self, down: nn.Module, up: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.down, self.act, self.up = down, ACTIVATIONS[activation], up

    def change(self, z: Tensor) -> Tensor:
        """A(z), [..., d] -> [..., d]."""
        changed: Tensor = self.up(self.act(self.down(z)))
        return changed


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

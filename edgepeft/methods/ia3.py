"""(IA)^3 (Liu et al., 2022, arXiv:2205.05638, section 3.3): y' = l * y on keys, values and feed-forward activations.

    softmax(Q (l_k * K)^T / sqrt(d)) (l_v * V)    and    W2 (l_ff * act(W1 x))

l is a vector that starts as ones.  In an encoder-decoder the keys and values of cross-attention are scaled too.
"""

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import LINEAR_ROLES, Role, Site
from edgepeft.methods.base import ChoosesRoles, crossed, option

ROLES = (*LINEAR_ROLES, Role.FFN_ACTIVATION)


class Scale(nn.Module):
    """l * y, [..., d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))  # so that a fresh delta is the identity

    def forward(self, y: Tensor) -> Tensor:
        return y * self.scale


class IA3(ChoosesRoles):
    """Learned scales of what flows through each layer."""

    name = "ia3"
    title = "(IA)^3"
    paper = "Liu et al., 2022, arXiv:2205.05638"
    equation = "l * y; y of keys, values, act(W1 x)"
    known_roles = ROLES
    learning_rate = 9e-3
    learning_rate_source = "measured, docs/methods.md; Liu et al., the authors' code, on T0: 3e-3"

    roles: tuple[str, ...] = option(("key", "value", "ffn_activation"), f"what is scaled, of {', '.join(ROLES)}")

    def attaches_across(self) -> tuple[Role, ...]:
        return crossed(self.attaches_to())

    def build_at(self, site: Site) -> nn.Module:
        return Scale(site.out_features)

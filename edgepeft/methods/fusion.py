"""AdapterFusion (Pfeiffer et al., 2021, arXiv:2005.00247, section 3): attention over n adapters, once a layer.

    LN(sub + sum_i p_i V A_i(z) + res),  p = softmax_i((Q z + q)^T (K A_i(z) + k)),  z = LN(sub + res)

A_i are n Pfeiffer adapters.  The paper trains each for a task of its own and Q, K and V afterwards, with the adapters
frozen; what is imported from AdapterHub has them all.  Trained here, all are trained together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods._adapters import Bottleneck, BottleneckMethod
from edgepeft.methods.base import option


class Fused(nn.Module):
    """The adapters of one layer and the attention over them."""

    def __init__(self, hidden: int, method: Fusion) -> None:
        super().__init__()
        made = (Bottleneck(*method.linears(hidden), method.activation) for _ in range(method.adapters))
        self.adapters = nn.ModuleList(made)
        self.query, self.key = method.linears(hidden, hidden)
        value = nn.Linear(hidden, hidden, bias=False)
        nn.init.eye_(value.weight)
        self.value = value if method.value else nn.Identity()

    def forward(self, y: Tensor, residual: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """All [..., d]; ``norm`` is the LayerNorm after the sum."""
        z = norm(y + residual)
        changes = torch.stack([cast("Bottleneck", adapter).change(z) for adapter in self.adapters], -2)  # [..., n, d]
        scores = (self.query(z).unsqueeze(-2) * self.key(changes)).sum(-1, keepdim=True)
        return y + self.value((torch.softmax(scores, -2) * changes).sum(-2))


class Fusion(BottleneckMethod):
    """Several Pfeiffer adapters a layer, weighed for each token."""

    name = "fusion"
    title = "AdapterFusion"
    paper = "Pfeiffer et al., 2021, arXiv:2005.00247"
    equation = "LN(sub + sum_i p_i V A_i(z) + res); p = softmax(Q z . K A_i(z)), z = LN(sub + res)"
    learning_rate = 5e-5
    learning_rate_source = "Pfeiffer et al., section 4.2, of the fusion over frozen adapters"

    adapters: int = option(2, "adapters n that are fused", least=2)
    bottleneck: int = option(64, "width m of each adapter", least=1)
    value: bool = option(True, "a matrix V on what is mixed (AdapterHub's dynamic form)")

    def attaches_to(self) -> tuple[Role, ...]:
        return (Role.FFN_OUTPUT,)

    def build_at(self, site: Site) -> nn.Module:
        return Fused(site.out_features, self)

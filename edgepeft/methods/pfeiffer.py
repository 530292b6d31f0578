"""Pfeiffer adapters (Pfeiffer et al., 2021, arXiv:2005.00247, in AdapterHub's form): LN(sub + A(LN(sub + res)) + res).

A(z) = W2 act(W1 z + b1) + b2, once a layer, after the feed-forward's projection.  The layer's own
LayerNorm runs twice.  The adapter's inner residual starts from ``sub``, the sub-layer's output, not
from LN(sub + res), which A reads.  ``placement="attention"`` is what the Compacter paper calls Pfeiffer:
Houlsby's form, LN(sub + A(sub) + res), after self-attention only.
"""

from typing import Literal

from torch import nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods._adapters import Bottleneck, BottleneckMethod, OnNorm, OnSubLayer
from edgepeft.methods.base import option

# Where the adapter stands -> the site's role and the module.
PLACEMENTS: dict[str, tuple[Role, type[Bottleneck]]] = {
    "ffn": (Role.FFN_OUTPUT, OnNorm),
    "attention": (Role.ATTENTION_OUTPUT, OnSubLayer),
}


class Pfeiffer(BottleneckMethod):
    """One bottleneck adapter a layer."""

    name = "pfeiffer"
    title = "Pfeiffer adapter"
    paper = "Pfeiffer et al., 2021, arXiv:2005.00247"
    equation = "LN(sub + A(LN(sub + res)) + res)"
    learning_rate = 9e-4
    learning_rate_source = "measured, docs/methods.md; Pfeiffer et al. and Deshpande et al.: 1e-4"

    placement: Literal["ffn", "attention"] = option(
        "ffn", "ffn: AdapterHub's form; attention: the Compacter paper's, LN(sub + A(sub) + res)"
    )
    norms: bool = option(False, "train every LayerNorm too (as the Compacter paper does)")

    def attaches_to(self) -> tuple[Role, ...]:
        return (PLACEMENTS[self.placement][0],)

    def build_at(self, site: Site) -> nn.Module:
        return PLACEMENTS[self.placement][1](*self.linears(site.out_features), self.activation)

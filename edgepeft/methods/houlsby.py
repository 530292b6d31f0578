"""Houlsby adapters (Houlsby et al., 2019, arXiv:1902.00751, section 2.1): y' = y + W2 act(W1 y + b1) + b2.

Twice a layer, after attention's and the feed-forward's projection, before the residual sum and its
LayerNorm: LN(sub + A(sub) + res).  Every LayerNorm is trained too.
"""

from torch import Tensor, nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods._adapters import Activation, BottleneckMethod, OnSubLayer
from edgepeft.methods.base import option


class Houlsby(BottleneckMethod):
    """Bottleneck adapters after both sub-layers."""

    name = "houlsby"
    title = "Houlsby adapter"
    paper = "Houlsby et al., 2019, arXiv:1902.00751"
    equation = "LN(sub + A(sub) + res)"
    learning_rate = 9e-4
    learning_rate_source = "measured, docs/methods.md; Houlsby et al., section 3.1: 3e-5, 3e-4, 3e-3"

    activation: Activation = option("tanh-gelu", "act (the authors' code)")
    norms: bool = option(True, "train every LayerNorm too")
    std: float = option(1e-3, "of the truncated normal init (authors' code; the paper says 1e-2)", positive=True)

    def attaches_to(self) -> tuple[Role, ...]:
        return (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)

    def build_at(self, site: Site) -> nn.Module:
        return OnSubLayer(*self.linears(site.out_features), self.activation)

    def fill(self, weight: Tensor) -> None:
        nn.init.trunc_normal_(weight, std=self.std, a=-2 * self.std, b=2 * self.std)

"""MAM, mix and match (He et al., 2022, arXiv:2110.04366, section 4.6): a prefix, and adapters beside feed-forwards.

    softmax(Q [K; P_k]^T / sqrt(e)) [V; P_v]        LN(sub + A(res) + res),  A(z) = up(act(down(z))) after each FFN

The parts are those of ``prefix`` and ``bottleneck``.  The paper scales A by 4, which a trained ``up`` takes into
itself.
"""

from collections.abc import Sequence

from torch import nn

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods._adapters import Activation
from edgepeft.methods.base import option
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.prefix import PrefixTuning


class MAM(PrefixTuning):
    """Prefix tuning and parallel adapters in one task."""

    name = "mam"
    title = "MAM (prefix and parallel adapter)"
    paper = "He et al., 2022, arXiv:2110.04366"
    equation = "prefix; LN(sub + A(res) + res)"
    places_adapters = True
    learning_rate = 3e-4
    learning_rate_source = (
        "measured, docs/methods.md; He et al., the authors' exps_glue/run_glue_trainer.sh (SST-2 on RoBERTa-base): 1e-4"
    )

    length: int = option(30, "pairs p of a layer", least=1)
    bottleneck: int = option(512, "width m of the adapter")
    activation: Activation = option("relu", "act")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.adapter  # which refuses what it cannot be

    @property
    def adapter(self) -> BottleneckAdapter:
        return BottleneckAdapter(bottleneck=self.bottleneck, activation=self.activation)

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        return (*super().sites(architecture), *self.adapter.sites(architecture))

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        beside = [site for site in sites if site.role is Role.FFN_OUTPUT]
        return super().build([site for site in sites if site not in beside]) | self.adapter.build(beside)

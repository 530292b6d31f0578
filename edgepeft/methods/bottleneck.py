"""Bottleneck adapters in AdapterHub's general form (Poth et al., 2023, arXiv:2311.11077): y' = k + A(z).

A(z) = W2 act(W1 z + b1) + b2.  ``reads`` says what z is and ``keeps`` what k is: the sub-layer's output
``sub``, its residual ``res``, their sum, or LN(sub + res); the layer then computes LN(y' + res).

    reads     keeps     is known as
    sublayer  sublayer  Houlsby's form
    norm      sublayer  Pfeiffer's form (AdapterHub's seq_bn)
    residual  sublayer  the parallel adapter (He et al., 2022, arXiv:2110.04366, table 2)
    sublayer  sublayer  at layer_output, past the last norm: Adapter+ (Steitz & Roth, 2024, arXiv:2406.06820)

``norm_before`` puts a LayerNorm of the adapter's own on z; ``norm_after`` one on A's result (``change``)
or on the sum (``sum``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods._adapters import Bottleneck, BottleneckMethod
from edgepeft.methods.base import ChoosesRoles, option, require

ROLES = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT, Role.LAYER_OUTPUT)


class _Placed(Bottleneck):
    """A with norms of its own; a subclass names, in ``forward``, what of the site it reads."""

    def __init__(self, hidden: int, method: BottleneckAdapter) -> None:
        super().__init__(*method.linears(hidden), method.activation)
        self.reads, self.keeps, self.after = method.reads, method.keeps, method.norm_after
        self.norm_before = nn.LayerNorm(hidden) if method.norm_before else nn.Identity()
        self.norm_after = nn.Identity() if method.norm_after == "none" else nn.LayerNorm(hidden)

    def adapt(self, values: dict[str, Tensor]) -> Tensor:
        """k + A(z), of values by the names that ``reads`` and ``keeps`` have; all [..., d]."""
        change, kept = self.change(self.norm_before(values[self.reads])), values[self.keeps]
        return self.norm_after(kept + change) if self.after == "sum" else kept + self.norm_after(change)


class InSubLayer(_Placed):
    """Reads and keeps ``sub``."""

    def forward(self, y: Tensor) -> Tensor:
        return self.adapt({"sublayer": y})


class WithResidual(_Placed):
    """Reads ``res``, or keeps the sum."""

    def forward(self, y: Tensor, residual: Tensor) -> Tensor:
        return self.adapt({"sublayer": y, "residual": residual, "sum": y + residual})


class WithNorm(_Placed):
    """Reads or keeps LN(sub + res)."""

    def forward(self, y: Tensor, residual: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """All [..., d]; ``norm`` is the LayerNorm after the sum."""
        total = y + residual
        return self.adapt({"sublayer": y, "residual": residual, "sum": total, "norm": norm(total)})


class BottleneckAdapter(BottleneckMethod, ChoosesRoles):
    """One adapter at each chosen place, in any of the forms."""

    name = "bottleneck"
    title = "Bottleneck adapter (general)"
    paper = "Poth et al., 2023, arXiv:2311.11077"
    equation = "LN(k + A(z) + res); k, z of sub, res, sub + res, LN(sub + res)"
    known_roles = ROLES
    learning_rate = 3e-4
    learning_rate_source = "measured, docs/methods.md"

    roles: tuple[str, ...] = option(("ffn_output",), f"places, of {', '.join(ROLES)}")
    reads: Literal["sublayer", "residual", "norm"] = option(
        "residual", "what A reads: sublayer (sub), residual (res: the parallel adapter), norm (LN(sub + res))"
    )
    keeps: Literal["sublayer", "sum", "norm"] = option(
        "sublayer", "what A's result is added to: sublayer (sub), sum (sub + res), norm (LN(sub + res))"
    )
    norm_before: bool = option(False, "a LayerNorm of the adapter's own on what it reads")
    norm_after: Literal["none", "change", "sum"] = option(
        "none", "a LayerNorm of the adapter's own on its result (change), or on the sum (sum)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = self.reads == self.keeps == "sublayer"
        require(
            alone or Role.LAYER_OUTPUT not in self.roles,
            "nothing is added to a layer_output: there bottleneck needs reads=sublayer and keeps=sublayer; "
            f"found reads={self.reads}, keeps={self.keeps}.",
        )

    def build_at(self, site: Site) -> nn.Module:
        read = {self.reads, self.keeps}
        form = WithNorm if "norm" in read else WithResidual if read & {"residual", "sum"} else InSubLayer
        return form(site.out_features, self)

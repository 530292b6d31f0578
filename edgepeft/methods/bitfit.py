"""BitFit (Ben Zaken et al., 2022, arXiv:2106.10199): every bias of the encoder is trained, nothing else is."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from edgepeft.backbones.base import Architecture
from edgepeft.methods.base import Method

__all__ = ["BitFit"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitFit(Method):
    """Own copies of the backbone's biases, those of the LayerNorms and of a pooler that the head reads included."""

    name: ClassVar[str] = "bitfit"
    title: ClassVar[str] = "BitFit"
    paper: ClassVar[str] = "Ben Zaken et al., 2022, arXiv:2106.10199"
    equation: ClassVar[str] = "W x + b', b' trained"
    learning_rate: ClassVar[float] = 1e-3
    learning_rate_source: ClassVar[str] = "Ben Zaken et al., appendix A (grid 1e-4 to 1e-3)"

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        """Every tensor called bias."""
        return tuple(name for name in (*architecture.tensors, *architecture.pooler) if name.endswith(".bias"))

    def n_parameters(self, architecture: Architecture) -> int:
        """The output width of every linear layer and LayerNorm: L (5 d + f) + (2 L + 1) d in BERT."""
        shapes = {**architecture.tensors, **architecture.absent_biases}
        return sum(width for name, (width, *_) in shapes.items() if name.endswith(".bias"))

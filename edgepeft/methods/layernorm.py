"""LayerNorm tuning (Houlsby et al., 2019, arXiv:1902.00751, section 3.4): g (z - mean) / std + b, g and b trained."""

from __future__ import annotations

from typing import ClassVar

from edgepeft.backbones.base import Architecture
from edgepeft.methods.base import Method, norm_tensors


class LayerNormTuning(Method):
    """Own copies of the backbone's LayerNorms, the embeddings' one included."""

    name: ClassVar[str] = "layernorm"
    title: ClassVar[str] = "LayerNorm tuning"
    paper: ClassVar[str] = "Houlsby et al., 2019, arXiv:1902.00751, section 3.4"
    equation: ClassVar[str] = "g' (z - mean) / std + b', g' and b' trained"
    learning_rate: ClassVar[float] = 1e-3
    learning_rate_source: ClassVar[str] = "none published for encoders; BitFit's, which trains tensors of the same kind"

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        """Weight and bias of every LayerNorm."""
        return norm_tensors(architecture)

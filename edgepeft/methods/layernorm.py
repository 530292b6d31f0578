"""LayerNorm tuning (Houlsby et al., 2019, arXiv:1902.00751, section 3.4): g (z - mean) / std + b, g and b trained."""

from edgepeft.backbones.base import Architecture
from edgepeft.methods.base import Method, norm_tensors


class LayerNormTuning(Method):
    """Own copies of the backbone's LayerNorms, the embeddings' one included."""

    name = "layernorm"
    title = "LayerNorm tuning"
    paper = "Houlsby et al., 2019, arXiv:1902.00751, section 3.4"
    equation = "g' (z - mean) / std + b', g' and b' trained"
    learning_rate = 1e-3
    learning_rate_source = "none published for encoders; BitFit's, which trains tensors of the same kind"

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        return norm_tensors(architecture)

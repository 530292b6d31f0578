"""Top-k layers ("variable fine-tuning", Houlsby et al., 2019, arXiv:1902.00751, section 3): W' x + b' in the last k.

Embeddings and the layers below stay frozen, so no gradient is computed there.  The attention and
feed-forward matrices of k layers are the task's own.
"""

from edgepeft.backbones.base import Architecture, Role
from edgepeft.methods.base import Method, option, require


class TopK(Method):
    """Own copies of the last layers' tensors, those of a pooler that the head reads included."""

    name = "top-k"
    title = "Top-k layers"
    paper = "Houlsby et al., 2019, arXiv:1902.00751, section 3"
    equation = "W' x + b', all trained in layers L - k to L - 1"
    learning_rate = 6e-5
    learning_rate_source = (
        "measured, docs/methods.md; Deshpande et al., 2022, appendix A (full fine-tuning of RoBERTa): 2e-5"
    )

    layers: int = option(3, "k: how many of the last layers are trained (Houlsby et al. try 1 to 12)", least=1)

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        """Every tensor of those layers, and of what lies above them."""
        n_layers = architecture.n_layers
        require(
            architecture.decoder is None,
            f"top-k is defined on encoders; {architecture.model_type} has a decoder.",
        )
        require(
            self.layers <= n_layers,
            f"top-k's layers must be at most {n_layers}, the layers that this backbone has; found {self.layers}. "
            "To train the embeddings too, use the method full.",
        )
        paths = [architecture.layer_path(layer) for layer in range(n_layers - self.layers, n_layers)]
        paths += [f"{site.module}." for site in architecture.sites_of(Role.STACK_OUTPUT)]
        return (*(name for name in architecture.tensors if name.startswith(tuple(paths))), *architecture.pooler)

"""BitFit (Ben Zaken et al., 2022, arXiv:2106.10199): every bias of the encoder is trained, nothing else is.

T5 has none.  As in the Compacter paper's code, linear layers and norms get zeros to be trained: y' = y + b, the stacks'
last norms left out; the output layer's is added to the logits of what is scored.  ModernBERT has none either, and no
paper says where they would go: it is refused there.
"""

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods.base import Method, require


class AddedBias(nn.Module):
    """y + b, [..., d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))  # so that a fresh delta is the identity

    def forward(self, y: Tensor) -> Tensor:
        return y + self.bias


class OutputBias(nn.Module):
    """y + b, b for every word, of which those of the labels' edges are read."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, y: Tensor, token: Tensor) -> Tensor:
        """[batch, nodes, edges] and int64 [edges] -> [batch, nodes, edges]."""
        return y + self.bias[token]


class BitFit(Method):
    """Own copies of the backbone's biases, those of the LayerNorms and of a pooler that the head reads included."""

    name = "bitfit"
    title = "BitFit"
    paper = "Ben Zaken et al., 2022, arXiv:2106.10199"
    equation = "W x + b', b' trained"
    learning_rate = 1e-3
    learning_rate_source = "Ben Zaken et al., appendix A (grid 1e-4 to 1e-3)"

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        """Outputs of linear layers and norms without a bias; sites of what these read are left out."""
        require(
            bool(architecture.absent_biases) or any(name.endswith(".bias") for name in architecture.tensors),
            f"bitfit trains biases, and {architecture.model_type} has none. "
            "To train its norms, use the method layernorm.",
        )
        absent = architecture.absent_biases
        return tuple(site for site in architecture.sites if f"{site.reads}.bias" in absent and not site.is_input)

    def build_at(self, site: Site) -> nn.Module:
        return (OutputBias if site.role is Role.POOLED_LABELS else AddedBias)(site.out_features)

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        return tuple(name for name in (*architecture.tensors, *architecture.pooler) if name.endswith(".bias"))

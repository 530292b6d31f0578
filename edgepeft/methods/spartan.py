"""SPARTAN (Deshpande et al., 2022, arXiv:2211.16634, eqs. 1-3): a sparse two-level memory after each layer.

    g = softmax(P h), the K largest kept and renormalised
    v_i = C^V_i softmax(C^K_i h / T)          for each kept parent i
    y' = h + sum_i g_i v_i

h is the layer's output, past its last LayerNorm.  T is 1 in the paper and 1.6 in the authors' code, which
also trains every LayerNorm.  Computed densely: dropped parents get weight zero, so a layer costs two
products more and no gather.

Letters: N parents, C children of each, K kept parents, d hidden.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Role, Site
from edgepeft.methods.base import TrainsNorms, option, require


class Memory(nn.Module):
    """h + v_O, [..., d] -> [..., d].

    Children lie child first, [C, N, d]: a softmax over the last axis of 3 costs ONNX Runtime 3 times as
    much as the same over the one before it.
    """

    def __init__(self, hidden: int, *, parents: int, children: int, top_k: int, temperature: float, std: float) -> None:
        super().__init__()
        self.top_k, self.temperature = top_k, temperature
        self.parents = nn.Parameter(torch.empty(parents, hidden))
        self.keys = nn.Parameter(torch.empty(children, parents, hidden))
        self.values = nn.Parameter(torch.empty(children, parents, hidden))
        for cells in (self.parents, self.keys, self.values):
            nn.init.normal_(cells, std=std)

    def forward(self, y: Tensor) -> Tensor:
        weights = self.child_weights(y) * self.parent_weights(y).unsqueeze(-2)  # (..., C, N)
        return y + weights.flatten(-2) @ self.values.flatten(0, 1)

    def parent_weights(self, y: Tensor) -> Tensor:
        """Eq. 1, renormalised as in eq. 3: [..., d] -> [..., N], zero but for the K best.

        Parents that tie with the K-th are all kept.  Counting who is better is cheaper than ONNX
        Runtime's TopK, and it decides ties alike everywhere.
        """
        scores = functional.linear(y, self.parents)  # (..., N)
        better = scores.unsqueeze(-2) > scores.unsqueeze(-1)  # (..., N, N): is column better than row
        kept = better.to(scores.dtype).sum(-1) < self.top_k
        return torch.where(kept, scores, torch.finfo(scores.dtype).min).softmax(-1)

    def child_weights(self, y: Tensor) -> Tensor:
        """The softmax of eq. 2 for every parent: [..., d] -> [..., C, N], 1 in sum over C."""
        children, parents, _ = self.keys.shape
        keys = self.keys.flatten(0, 1) / self.temperature  # constant once exported, so folded at load
        scores = torch.unflatten(functional.linear(y, keys), -1, (children, parents))
        powers = (scores - scores.amax(-2, keepdim=True)).exp()
        # Added one by one: ONNX Runtime's ReduceSum over a middle axis is slow.
        return powers / functools.reduce(torch.add, powers.unbind(-2)).unsqueeze(-2)


class Spartan(TrainsNorms):
    """Sparse hierarchical memory."""

    name = "spartan"
    title = "SPARTAN"
    paper = "Deshpande et al., 2022, arXiv:2211.16634"
    equation = "h + sum_i g_i C^V_i softmax(C^K_i h / T), g = top-K softmax(P h)"
    near_identity = True  # |v_O| is about 1 % of |h|: cells of std 0.02, averaged
    learning_rate = 3e-3
    learning_rate_source = "measured, docs/methods.md; Deshpande et al., appendix A: 2e-5, 1e-4, 1e-3"

    parents: int = option(16, "parent cells N a layer", least=1)
    children: int = option(3, "child cells C of each parent", least=1)
    top_k: int = option(8, "parents K that are kept for a token")
    temperature: float = option(1.0, "T of the children's softmax (the authors' scripts use 1.6)", positive=True)
    norms: bool = option(True, "train every LayerNorm too (as the authors' code does)")
    std: float = option(0.02, "of the normal init", positive=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            1 <= self.top_k <= self.parents,
            f"spartan's top_k must be between 1 and parents, {self.parents}; found {self.top_k}.",
        )

    def attaches_to(self) -> tuple[Role, ...]:
        return (Role.LAYER_OUTPUT,)

    def build_at(self, site: Site) -> nn.Module:
        sizes = {"parents": self.parents, "children": self.children, "top_k": self.top_k}
        return Memory(site.out_features, **sizes, temperature=self.temperature, std=self.std)

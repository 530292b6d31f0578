"""VeRA (Kopiczko et al., 2024, arXiv:2310.11454, eq. 2): y' = y + Lambda_b B Lambda_d A x.

A [r, in] and B [out, r] are random and frozen, one pair for all modules; Lambda_b and Lambda_d are diagonal, and their
entries b [out] and d [r] are all that is trained.  Where widths differ, a layer takes the first columns of A and the
first rows of B, which are as large as the widest layers ask for (PEFT does so).

Neither a delta nor a bundle stores A and B: they follow from a seed, by the generator that
``edgepeft.common.frozen_random`` specifies and PEFT uses, and a board draws them when a task is opened.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.common.frozen_random import MAX_ENTRIES, MERSENNE_TWISTER, SEEDS, frozen_matrices
from edgepeft.methods.base import Drawn, option, require
from edgepeft.methods.lora import LinearUpdates


class FrozenMatrices(Drawn):
    """A and B; one such module is all that a delta may have."""

    A: Tensor
    B: Tensor

    def __init__(self, seed: int, shapes: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        self.recipe = {"generator": MERSENNE_TWISTER, "seed": seed, "shapes": self.shapes}
        for name, values in frozen_matrices(seed, shapes).items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)


class VectorBased(nn.Module):
    """y + b * (B (d * (A x))); x [..., in], y [..., out]."""

    def __init__(self, inputs: int, outputs: int, projections: FrozenMatrices, initial: float) -> None:
        super().__init__()
        self.projections, self.inputs, self.outputs = projections, inputs, outputs
        self.d = nn.Parameter(torch.full((len(projections.A),), initial))
        self.b = nn.Parameter(torch.zeros(outputs))  # zero, so that a fresh delta is the identity

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        down, up = self.projections.A, self.projections.B
        down = down if down.shape[1] == self.inputs else down[:, : self.inputs]
        up = up if len(up) == self.outputs else up[: self.outputs]
        return y + functional.linear(functional.linear(x, down) * self.d, up) * self.b


class VeRA(LinearUpdates):
    """Trained vectors between random matrices."""

    name = "vera"
    title = "VeRA"
    paper = "Kopiczko et al., 2024, arXiv:2310.11454"
    equation = "y + Lambda_b B Lambda_d A x, A and B random"
    learning_rate = 1e-2
    learning_rate_source = "Kopiczko et al., table 8 (RoBERTa-base: 1e-2 on four of six sets)"

    rank: int = option(256, "r", least=1)
    seed: int = option(0, "of A and B (PEFT's projection_prng_key)")
    initial: float = option(0.1, "what d starts from")

    def __post_init__(self) -> None:
        require(0 <= self.seed < SEEDS, f"vera's seed must be from 0 to 2^32 - 1; found {self.seed}.")
        require(math.isfinite(self.initial), f"vera's initial must be a finite number; found {self.initial}.")
        super().__post_init__()

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        inputs, outputs = max(site.in_features for site in sites), max(site.out_features for site in sites)
        most = MAX_ENTRIES // (inputs + outputs)
        require(self.rank <= most, f"vera's rank must be at most {most:,} on this backbone; found {self.rank:,}.")
        projections = FrozenMatrices(self.seed, {"A": (self.rank, inputs), "B": (outputs, self.rank)})
        return {
            site.name: VectorBased(site.in_features, site.out_features, projections, self.initial) for site in sites
        }

"""DoRA (Liu et al., 2024, arXiv:2402.09353, eq. 5 and 6): W' = m (W + s B A) / ||W + s B A||, one norm for each output.

W [out, in] is a linear layer's own frozen weight, s = alpha / r; the magnitudes m [out] start as ||W||, so that W' = W.
The bias stays as it is.  In gradients the norm is a constant (section 4.3), as in PEFT.

A board needs no norm: it is folded into one factor an output, g = m / ||W + s B A||, in

    y' = g (W x + s B A x) + b

There g, A and B are tuned.  The norm stays what it was when the task was exported: the gradients of A and B are those
of section 4.3, g's is m's times that norm, and what g is after any step is an m of the paper's again.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture
from edgepeft.methods.base import Folding, ReadTensor, weight_at
from edgepeft.methods.lora import Factors, LoRA


class Scaled(Factors):
    """g (y - b + s B A x) + b; x [..., in], y [..., out]."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__(inputs, outputs, rank, scale)
        self.factor = nn.Parameter(torch.ones(outputs))

    def forward(self, y: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return _scaled(self.factor, y, self.update(x), bias)


class Decomposed(Factors, Folding):
    """m (y - b + s B A x) / ||W + s B A|| + b."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__(inputs, outputs, rank, scale)
        self.magnitude = nn.Parameter(torch.ones(outputs))

    def forward(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _scaled(self.factor(weight), y, self.update(x), bias)

    def factor(self, weight: Tensor) -> Tensor:
        """g, [out]: m / ||W + s B A||."""
        updated = weight + self.scale * self.B.detach() @ self.A.detach()
        return self.magnitude / updated.norm(dim=1)

    def folded(self, weight: Callable[[], Tensor]) -> Scaled:
        rank, inputs = self.A.shape
        folded = Scaled(inputs, len(self.B), rank, self.scale).to(self.A)
        folded.A, folded.B = self.A, self.B
        folded.factor.data = self.factor(weight().to(self.A)).detach()
        return folded


def _scaled(factor: Tensor, y: Tensor, update: Tensor, bias: Tensor | None) -> Tensor:
    return factor * (y + update) if bias is None else factor * (y - bias + update) + bias


class DoRA(LoRA):
    """Low-rank updates of directions, and a trained magnitude for each output."""

    name = "dora"
    title = "DoRA"
    paper = "Liu et al., 2024, arXiv:2402.09353"
    equation = "m (W + s B A) / ||W + s B A|| x + b"
    learning_rate_source = "as lora, whose variant it is; measured, docs/methods.md"
    module = Decomposed

    def start(self, modules: Mapping[str, nn.Module], architecture: Architecture, read: ReadTensor) -> None:
        for name, module in modules.items():
            assert isinstance(module, Decomposed)
            module.magnitude.data.copy_(weight_at(architecture.site(name), read).norm(dim=1))

"""Intrinsic-SAID (Aghajanyan et al., 2021, arXiv:2012.13255, eq. 3): theta_i = theta_i0 + lambda_i P_i theta.

For every tensor i of the backbone; theta is one vector for all of them, lambda_i one number a tensor, P_i a
fixed random projection, the Fastfood transform (Le et al., 2013, arXiv:1408.3060).  theta and the lambdas
together are the intrinsic dimension d'.  P_i is never stored: it follows from a seed, by the integer generator
that ``common/frozen_random.py`` specifies, and the board computes the tensors once, when a task is opened.  While it is
open the task holds matrices of its own, as many as the backbone has.

A tensor with fewer entries than theta reads theta's first ones only, as many as the next power of two
(the authors' code does the same).  Their backward pass is 1 / LL of the true gradient; this one is autograd's.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.common.frozen_random import FASTFOOD, Fastfood, hadamard, map_ahead
from edgepeft.methods.base import Generator, Method, option, require

_RADIX = 64  # H's bits are taken six at a time: products with a 64 x 64 matrix, for autograd and BLAS
Shapes = Mapping[str, tuple[int, ...]]


class Projected(Generator):
    """theta [d' - tensors] and scales [tensors] -> every tensor; what follows from the seed is made at first use."""

    def __init__(self, shapes: Shapes, dimension: int, seed: int) -> None:
        super().__init__()
        self.shapes, self.seed, self.names = dict(shapes), seed, tuple(shapes)  # in the order of the scales
        self.recipe = {"generator": FASTFOOD, "seed": seed, "vector": "theta", "scales": "scales"}
        self.theta = nn.Parameter(torch.zeros(dimension - len(shapes)))  # zero, so that a fresh delta is the identity
        self.scales = nn.Parameter(torch.ones(len(shapes)))
        self._tables: nn.ModuleList | None = None
        self._last: tuple[Tensor, Tensor, dict[str, Tensor]] | None = None

    def forward(self, pretrained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if torch.is_grad_enabled():
            if self._tables is None:
                self._tables = nn.ModuleList(self._made())  # for the next step
            self._last = None
            updates = self._updates(self._tables)
        else:
            updates = self._remembered()
        return {name: pretrained[name] + update for name, update in updates.items()}

    def _remembered(self) -> dict[str, Tensor]:
        """lambda_i P_i theta, computed anew only when theta or a scale has changed: evaluation asks batch by batch."""
        last = self._last
        moved = last is not None and last[0].device != self.theta.device
        if last is None or moved or not (torch.equal(last[0], self.theta) and torch.equal(last[1], self.scales)):
            updates = self._updates(self._tables or self._made())
            last = self._last = (self.theta.detach().clone(), self.scales.detach().clone(), updates)
        return last[2]

    def _updates(self, tables: Iterable[nn.Module]) -> dict[str, Tensor]:
        parts = zip(tables, self.scales, self.shapes.items(), strict=True)
        kind = self.theta.device.type
        half = torch.amp.is_autocast_available(kind)  # under autocast, sums of thousands of terms stay float32
        with torch.autocast(kind, enabled=False) if half else contextlib.nullcontext():
            return {name: (table(self.theta) * scale).view(shape) for table, scale, (name, shape) in parts}

    def _made(self) -> Iterator[_Table]:
        width = len(self.theta)
        projections = (Fastfood(self.seed, i, math.prod(shape), width) for i, shape in enumerate(self.shapes.values()))
        for table in map_ahead(_Table, projections, torch.get_num_threads()):
            yield table.to(self.theta.device)


class _Table(nn.Module):
    """P as torch computes it; the tables take 8 bytes for each of the LL entries, and are saved nowhere."""

    index: Tensor
    gaussian: Tensor
    signs: Tensor

    def __init__(self, fastfood: Fastfood) -> None:
        super().__init__()
        index, gaussian, self.denominator = fastfood.table()
        for name, values in {"index": index, "gaussian": gaussian, "signs": fastfood.signs()}.items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)  # [LL], [LL], [w]
        self.size = fastfood.size

    def forward(self, theta: Tensor) -> Tensor:
        """P theta, [D]."""
        period = len(self.signs)
        padded = functional.pad(theta[:period], (0, max(0, period - len(theta))))
        mixed = _walsh_hadamard(self.signs * padded)  # [w]: H B theta, which repeats
        values = self.gaussian * mixed.index_select(0, self.index)  # [LL]
        return _walsh_hadamard(values)[: self.size] / self.denominator


def _walsh_hadamard(values: Tensor) -> Tensor:
    """H values, [LL] -> [LL]: H of 2^(a+b) is the Kronecker product of H of 2^a and H of 2^b."""
    length, inner = len(values), 1
    while inner < length:
        radix = min(_RADIX, length // inner)
        matrix = _hadamard(radix, values.dtype, values.device)
        if inner == 1:
            values = values.view(-1, radix) @ matrix
        else:
            stacked = values.view(-1, radix, inner)
            values = torch.bmm(matrix.expand(len(stacked), -1, -1), stacked)
        inner *= radix
    return values.view(-1)


@functools.cache
def _hadamard(radix: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else what an evaluation has kept could not be trained through
        return torch.from_numpy(hadamard(radix)).to(device, dtype)


class IntrinsicSAID(Method):
    """One small vector, projected into every tensor of the backbone."""

    name = "intrinsic-said"
    title = "Intrinsic-SAID"
    paper = "Aghajanyan et al., 2021, arXiv:2012.13255"
    equation = "theta_i0 + lambda_i P_i theta, P_i = [H G Pi H B pad(.)][:D] / norm"
    learning_rate = 3e-3
    learning_rate_source = (
        "measured, docs/methods.md; Karimi Mahabadi et al., 2021, arXiv:2106.04647, appendix (T5-base): 3e-2"
    )

    dimension: int = option(20_000, "d': entries of theta and scales of tensors together", least=1)
    seed: int = option(0, "of the projections")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.seed < 2**63, f"intrinsic-said's seed must be from 0 to 2^63 - 1; found {self.seed}.")

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        return (*architecture.tensors, *architecture.pooler)

    def generator(self, shapes: Shapes) -> Projected:
        n = len(shapes)
        require(
            self.dimension > n,
            f"intrinsic-said's dimension must be at least {n + 1}: each of the {n} tensors takes one for its scale; "
            f"found {self.dimension}.",
        )
        return Projected(shapes, self.dimension, self.seed)

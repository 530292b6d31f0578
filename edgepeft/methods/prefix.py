"""Prefix tuning (Li and Liang, 2021, arXiv:2101.00190; Liu et al., 2022, arXiv:2110.07602): keys and values besides.

    softmax(Q [K; P_k]^T / sqrt(e)) [V; P_v]        P_k, P_v [p, d] of each layer, split into heads as K and V are

Tokens attend to a layer's p pairs as to tokens that stand in every row; where these stand does not matter, for nothing
else tells keys apart.  Where each key is turned by its place, a decoder's, they are those of p placeholders in front of
the text, P_k before it is turned (PEFT's vectors are past that).  ``projection`` trains them by way of an MLP of all
layers (Li and Liang, section 4.3), which is folded where a task is exported:

    P = W2 tanh(W1 E + b1) + b2,    E [p, d]

PEFT moves the texts' positions by p too, and AdapterHub does not: ``text``.  Behind placeholders they always move.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.methods.base import Folding, Method, option, require
from edgepeft.methods.prompt_t import OfLength, Prompt, first_replaced, require_room

_PAIRS = (Role.KEY_HEADS, Role.VALUE_HEADS)
_STATES = (Role.KEY_STATES, Role.VALUE_STATES)
_OPENED = (Role.ATTENTION_BIAS, Role.DISTANCE_BIAS)


class Prefix(nn.Module):
    """p rows behind a layer's split keys or values, [batch, h, n, e] -> [batch, h, n + p, e]."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(length, width))

    def forward(self, y: Tensor) -> Tensor:
        return _lengthened(y, self.vectors)


class Placed(Prompt):
    """Keys or values of a row's first p tokens replaced, [..., d] -> [..., d]."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__(length, width)
        nn.init.normal_(self.vectors)


class _ByMLP(Folding):
    """Vectors that an MLP makes; table and ``down`` are all layers' own.  A subclass places them as ``plain`` does."""

    plain: ClassVar[type[Prefix | Placed]]

    def __init__(self, table: nn.Parameter, down: nn.Linear, width: int) -> None:
        super().__init__()
        self.table, self.down, self.up = table, down, nn.Linear(down.out_features, width)

    def vectors(self) -> Tensor:
        """P, [p, d]."""
        return self.up(torch.tanh(self.down(self.table)))

    def folded(self, weight: Callable[[], Tensor]) -> Prefix | Placed:
        made = self.vectors().detach()
        folded = self.plain(*made.shape)
        folded.vectors = nn.Parameter(made)
        return folded


class Projected(_ByMLP):
    """A prefix of vectors that an MLP makes."""

    plain = Prefix

    def forward(self, y: Tensor) -> Tensor:
        return _lengthened(y, self.vectors())


class ProjectedPlaced(_ByMLP):
    """Keys or values of the first p tokens, which an MLP makes."""

    plain = Placed

    def forward(self, y: Tensor, position: Tensor) -> Tensor:
        return first_replaced(y, position, self.vectors())


class Opened(OfLength):
    """What masks attention, [..., n] -> [..., n + p]: the prefix is seen from everywhere, and is at no distance."""

    def forward(self, y: Tensor) -> Tensor:
        """Zeros are added to scores; in a mask of truths, what is true is seen."""
        seen = y[..., :1] * 0 if y.is_floating_point() else torch.ones_like(y[..., :1])
        return torch.cat([y, seen.expand(*y.shape[:-1], self.length)], dim=-1)


class Moved(OfLength):
    """Positions p places on, int64 [...]."""

    def forward(self, y: Tensor) -> Tensor:
        return y + self.length


def _lengthened(y: Tensor, vectors: Tensor) -> Tensor:
    heads = vectors.view(len(vectors), y.shape[1], -1).transpose(0, 1)  # (h, p, e)
    return torch.cat([y, heads.expand(y.shape[0], -1, -1, -1)], dim=2)


class PrefixTuning(Method):
    """Trained keys and values in every layer."""

    name = "prefix"
    title = "Prefix tuning"
    paper = "Li and Liang, 2021, arXiv:2101.00190"
    equation = "softmax(Q [K; P_k]^T / sqrt(e)) [V; P_v]"
    near_identity = False  # a fresh prefix is attended to
    learning_rate = 5e-3
    learning_rate_source = "Liu et al., 2022, the authors' script for RTE on RoBERTa"

    length: int = option(20, "pairs p of a layer", least=1)
    text: Literal["stays", "follows"] = option(
        "stays",
        "where texts begin: at the first position (stays: AdapterHub), or at the p-th (follows: PEFT; decoders always)",
    )
    projection: int = option(0, "width of the MLP that makes all layers' vectors while training; 0: they are trained")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.projection >= 0, f"prefix's projection must not be negative; found {self.projection}.")

    def prompt_length(self, architecture: Architecture) -> int:
        return self.length if architecture.sites_of(*_STATES) else 0

    def positions(self, architecture: Architecture) -> int:
        return self.length if self.text == "follows" else self.prompt_length(architecture)

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        if of_placeholders := architecture.sites_of(*_STATES):
            require_room(self.name, self.length, architecture)
            return of_placeholders
        moved = (Role.POSITION_IDS,) if self.text == "follows" else ()
        sites = architecture.sites_of(*_PAIRS, *_OPENED, *moved)
        require(
            bool(sites),
            f"{self.name} lengthens what tokens attend to, which a {architecture.model_type} cannot here: its "
            "attention tells keys apart by their places, and a prefix has none. BERT and its relatives with learnt "
            "positions can, ALBERT and MPNet too. prompt-r puts vectors in front of the text instead.",
        )
        return sites

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        made: dict[str, nn.Module] = {}
        width = max(site.out_features for site in sites)
        table, down = nn.Parameter(torch.randn(self.length, width)), nn.Linear(width, max(1, self.projection))
        for site in sites:
            if site.role not in _PAIRS + _STATES:
                made[site.name] = (Opened if site.role in _OPENED else Moved)(self.length)
            elif self.projection:
                made[site.name] = (ProjectedPlaced if site.role in _STATES else Projected)(table, down, width)
            else:
                made[site.name] = (Placed if site.role in _STATES else Prefix)(self.length, width)
        return made

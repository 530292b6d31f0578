"""What a head is: a module from a pooled hidden state to logits."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import UsageError, look_up
from edgepeft.common.registry import classes_of


class Head(nn.Module):
    """Base of all heads: a subclass takes hidden size, number of outputs (1 for a number) and dropout probability."""

    kind: ClassVar[str]  # by which it is found
    # Frozen backbone tensors that ``forward`` gets after the pooled value (BERT's pooler); never part of a delta.
    reads: ClassVar[tuple[str, ...]] = ()
    # Module of the head -> transformers' for sequence classification; each reads what dropout leaves, logits come last.
    places: ClassVar[Mapping[str, str]] = {}
    drops_first: ClassVar[bool] = True  # whether there is dropout before the first module too
    decodes: ClassVar[bool] = False  # it reads what a decoder gives, and is made for a trie of labels if there are some
    writes: ClassVar[bool] = False  # which is every word at each token of a target: there are no labels
    bare: ClassVar[bool] = False  # it gives the pooled value itself
    per_token: ClassVar[bool] = False  # it reads each token's last state

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def dropped(cls) -> tuple[str, ...]:
        """The weights of the modules that read what dropout leaves, in the order of the forward pass."""
        return tuple(f"{module}.weight" for module in cls.places)[0 if cls.drops_first else 1 :]

    @classmethod
    def check_reads(cls, architecture: Architecture) -> None:
        """See that the backbone has what ``forward`` gets of it."""
        known = {**architecture.tensors, **architecture.pooler}
        if absent := [name for name in cls.reads if name not in known]:
            raise UsageError(
                f"the head {cls.kind!r} reads {absent[0]}, which {architecture.model_type} does not have; leave it out."
            )

    @abstractmethod
    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> logits [batch, outputs]."""

    @classmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """Count trained parameters; a head without ``places`` has none."""
        with torch.device("meta"):  # sizes alone
            own = cls(architecture.hidden_size, outputs, 0.0).parameters() if cls.places else ()
        return sum(parameter.numel() for parameter in own)


def fresh_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer as BERT and its relatives start one: N(0, 0.02), their ``initializer_range``, and zero bias."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(linear.weight, std=0.02)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def heads() -> dict[str, type[Head]]:
    """Every kind of head by name."""
    return classes_of("edgepeft.heads", Head, "kind")  # type: ignore[type-abstract]


def head_named(kind: str) -> type[Head]:
    """The head of that kind."""
    return look_up("head", kind, heads())

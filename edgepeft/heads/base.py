"""What a head is: a module from a pooled hidden state to logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor, nn

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.trie import Trie
from edgepeft.common.errors import named
from edgepeft.common.registry import classes_of


class Head(nn.Module):
    """Base of all heads.

    A subclass takes (hidden size, number of outputs, dropout probability) and is found by its
    ``kind``; regression is a head with one output.  ``reads`` names frozen backbone tensors that its
    ``forward`` gets after the pooled value (BERT's pooler); they are never part of a delta.
    ``places`` says where transformers' class for sequence classification keeps what: module of the head ->
    theirs, the one that gives the logits last.  Each reads what dropout leaves; the first does not where
    ``drops_first`` is false.  One that ``decodes`` reads what a decoder gives; if it ``writes``, that is every word
    at each token of a target, and there are no labels.  One that is ``per_token`` reads each token's last state, one
    that is ``bare`` gives the pooled value itself.
    """

    kind: ClassVar[str]
    source: ClassVar[str]  # whose head it is
    reads: ClassVar[tuple[str, ...]] = ()
    places: ClassVar[Mapping[str, str]]
    drops_first: ClassVar[bool] = True
    decodes: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    bare: ClassVar[bool] = False
    per_token: ClassVar[bool] = False

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def made_for(cls, hidden: int, outputs: int, dropout: float, trie: Trie | None) -> Self:
        """A fresh one; ``trie`` holds the labels where it ``decodes``."""
        return cls(hidden, outputs, dropout)

    @classmethod
    def dropped(cls) -> tuple[str, ...]:
        """The weights of the modules that read what dropout leaves, in the order of the forward pass."""
        return tuple(f"{module}.weight" for module in cls.places)[0 if cls.drops_first else 1 :]

    @abstractmethod
    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> logits [batch, outputs]."""

    @classmethod
    @abstractmethod
    def n_parameters(cls, architecture: Architecture, outputs: int) -> int:
        """Trained parameters, by formula."""


def fresh_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer as BERT and its relatives start one: N(0, 0.02), their ``initializer_range``, and zero bias."""
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)
    return linear


def heads() -> dict[str, type[Head]]:
    """Every kind of head by name."""
    return classes_of("edgepeft.heads", Head, "kind")  # type: ignore[type-abstract]


def head_named(kind: str) -> type[Head]:
    """The head of that kind.

    Raises:
        UnknownName: there is none.
    """
    return named("head", kind, heads())

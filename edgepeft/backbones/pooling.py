"""Poolings: what a head reads of the last hidden states, in all its forms: one class for each.

A class has a pooling's nodes in the backbone's graph, its PyTorch code, by tensors' own methods, for a board has no
torch, and its names: of its site, in cards (``READS``), and in sentence-transformers' ``1_Pooling/config.json``.

Letters: B rows, S padded length, T tokens of all rows packed, d hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edgepeft.common.errors import UsageError

if TYPE_CHECKING:
    from edgepeft.backbones.packing import Packing

# What a head reads, in a card.  Of a row with a prompt in front, the first position is the prompt's.
HeadReads = Literal["first_token", "first_position", "last_token", "mean", "labels", "text", "tokens"]


class Pooling:
    """How a sentence head reads the tokens' last hidden states, or what a decoder makes of them for its labels."""

    FIRST: ClassVar[Pooling]
    MEAN: ClassVar[Pooling]
    LAST: ClassVar[Pooling]
    LABELS: ClassVar[Pooling]
    TOKENS: ClassVar[Pooling]

    name: ClassVar[str]
    mode: ClassVar[str] = ""  # sentence-transformers' name for it, if it makes an embedding
    switch: ClassVar[str] = ""  # and before its version 6, behind ``pooling_mode_``
    needs_rows: ClassVar[bool] = False  # ``behind_prompt`` reads each token's row

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Pooling.{self.name.upper()}"

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is the pooling itself
        return getattr, (Pooling, self.name.upper())

    @property
    def site(self) -> str:
        """The pooled site of that kind; no site has the one of tokens, which are the last layer's."""
        return f"pooled.{self.name}"

    @property
    def embedding(self) -> str:
        """The pooled site, of a kind that makes one vector of a text."""
        if self not in EMBEDDINGS:
            raise self._no_embedding()
        return self.site

    def _no_embedding(self) -> UsageError:
        known = " or ".join(map(str, EMBEDDINGS))
        return UsageError(f"an embedding is pooled as {known}; {self} are what a task's head reads.")

    def emit(self, packing: Packing, hidden: str) -> str:
        """Write its nodes: packed states (T, d) -> (B, d)."""
        raise ValueError(f"packed states have no pooling {self.name!r}")

    def of_states(self, hidden: Any, mask: Any) -> Any:
        """Pool PyTorch's [B, S, d] by a mask [B, S] of its real tokens: [B, d]."""
        raise ValueError(f"hidden states have no pooling {self.name!r}")

    def behind_prompt(self, arange: Any, skip: int, states: Any, first: Any, row: Any = None) -> Any:
        """Pool PyTorch's packed states [T, d] without the first ``skip`` tokens of each row: [B, d]; ``first`` [B] are
        the rows' first tokens, ``row`` [T] is each token's row, ``arange`` is torch's."""
        raise ValueError(f"behind a prompt there is no pooling {self.name!r}")

    def of_arrays(self, hidden: Any, real: Any) -> Any:
        """Pool NumPy's [B, S, d], padded at the end, by ``real`` [B, S, 1] of 0 and 1: [B, d]."""
        raise self._no_embedding()


class _First(Pooling):
    """The first real token."""

    name, mode, switch = "first", "cls", "cls_token"

    def emit(self, packing: Packing, hidden: str) -> str:
        return packing.emit.op("Gather", hidden, packing.starts, output=self.site)

    def of_states(self, hidden: Any, mask: Any) -> Any:
        return _tokens_at(hidden, (mask != 0).int().argmax(1))

    def behind_prompt(self, arange: Any, skip: int, states: Any, first: Any, row: Any = None) -> Any:
        return states[first + skip]

    def of_arrays(self, hidden: Any, real: Any) -> Any:
        return hidden[:, 0]


class _Mean(Pooling):
    """The mean of the real tokens."""

    name, mode, switch = "mean", "mean", "mean_tokens"
    needs_rows = True

    def emit(self, packing: Packing, hidden: str) -> str:
        from onnx import TensorProto

        op, ints = packing.emit.op, packing.emit.ints
        rows = op("Unsqueeze", op("Range", packing.zero, packing.batch, packing.one), ints(1))  # (B, 1)
        members = op("Cast", op("Equal", packing.row, rows), to=TensorProto.FLOAT)  # (B, T)
        counts = op("Unsqueeze", op("Cast", packing.counts, to=TensorProto.FLOAT), ints(1))
        return op("Div", op("MatMul", members, hidden), counts, output=self.site)

    def of_states(self, hidden: Any, mask: Any) -> Any:
        weights = mask.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(1) / weights.sum(1)

    def behind_prompt(self, arange: Any, skip: int, states: Any, first: Any, row: Any = None) -> Any:
        text = arange(states.shape[0]) - first[row] >= skip
        rows = arange(first.shape[0]).unsqueeze(1)
        members = ((row == rows) & text).to(states.dtype)  # (B, T)
        return members @ states / members.sum(1, keepdim=True)

    def of_arrays(self, hidden: Any, real: Any) -> Any:
        return (hidden * real).sum(1) / real.sum(1)


class _Last(Pooling):
    """The last real token, of a decoder alone."""

    name = "last"

    def emit(self, packing: Packing, hidden: str) -> str:
        return packing.emit.op("Gather", hidden, packing.ends(), output=self.site)

    def of_states(self, hidden: Any, mask: Any) -> Any:
        return _tokens_at(hidden, (mask != 0).cumsum(1).argmax(1))


class _Labels(Pooling):
    """What a decoder gives the edges of the labels' trie: its graph has it.  A linear head beside reads the mean."""

    name = "labels"

    def of_states(self, hidden: Any, mask: Any) -> Any:
        return Pooling.MEAN.of_states(hidden, mask)


class _Tokens(Pooling):
    """None: each token's own state."""

    name = "tokens"

    def of_states(self, hidden: Any, mask: Any) -> Any:
        return hidden


def _tokens_at(hidden: Any, places: Any) -> Any:
    """Take of [B, S, d] each row's token at ``places`` [B]: [B, d]."""
    return hidden.gather(1, places.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])).squeeze(1)


Pooling.FIRST, Pooling.MEAN, Pooling.LAST = _First(), _Mean(), _Last()
Pooling.LABELS, Pooling.TOKENS = _Labels(), _Tokens()

EMBEDDINGS = (Pooling.FIRST, Pooling.MEAN)  # every backbone's graph has these


# What a card's ``head_reads`` means.
READS: dict[HeadReads, Pooling] = {
    "first_token": Pooling.FIRST,
    "first_position": Pooling.FIRST,
    "mean": Pooling.MEAN,
    "last_token": Pooling.LAST,
    "labels": Pooling.LABELS,
    "text": Pooling.LABELS,  # of every word, at each token of the target
    "tokens": Pooling.TOKENS,
}
SKIP_PROMPT: tuple[HeadReads, ...] = ("first_token", "mean", "tokens")  # they leave a prompt's tokens in front out


def reads_of(pooling: Pooling) -> HeadReads:
    """What a card has for a text's head that reads by this pooling."""
    return next(name for name, read in READS.items() if read is pooling)

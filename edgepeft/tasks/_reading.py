"""How a kind of task reads rows: as texts or pairs, several of a row, and what is too long.

Texts that are too long are cut, or read in windows that overlap.  Of what is ``chosen`` for a task, ``stride`` is how
many tokens two windows share; without it texts are cut.  A kind that answers once for a text pools the logits of its
windows: it is taught by their mean (the loss is that of the pooled logits, not of each window), and ``pool`` says what
was better on the evaluation rows.  One that answers for each token takes each of the window where it has most context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.common.errors import UsageError
from edgepeft.data.row_grouping import RowGrouping, stitches_of
from edgepeft.data.rows import Row

CUT, WINDOWS = "cut", "windows"


class Reading:
    """How a kind of task reads rows; a part of ``TaskType``, with the facts that decide it."""

    title: ClassVar[str]  # in a sentence: "a classification"
    writes: ClassVar[bool] = False  # answers are texts, token by token
    per_token: ClassVar[bool] = False  # logits are of a row's tokens, [B, S, C]
    several_texts: ClassVar[bool] = False  # a row is several token rows: ``logits`` are [B, K, C] then, all over
    passages: ClassVar[bool] = False  # those are windows of its second text, and each has a loss: [B, K, S, C]
    pools: ClassVar[tuple[str, ...]] = ("mean", "max")  # of ``POOLS``: how a text's windows may be pooled
    texts_answered: ClassVar[int] = 1  # of a synthetic row, when it is answered
    texts_taught: ClassVar[int] = 1  # and when it is learnt from
    chosen: Mapping[str, Any]

    @property
    def windows(self) -> bool:
        """True if a long text is read in windows."""
        return self.passages or "stride" in self.chosen

    @property
    def stitches(self) -> bool:
        """True if each token's answer is taken of one of the windows that it stands in."""
        return self.windows and self.per_token and not self.passages

    @property
    def pooled(self) -> bool:
        """True if the logits of a text's windows become one answer."""
        return self.windows and not self.per_token

    @property
    def pool(self) -> str:
        """How a text's windows are pooled."""
        return str(self.chosen.get("pool", self.pools[0]))

    def bind_chosen(self, *without: str, **chosen: Any) -> Self:
        """Bind what is chosen, beside what was before but for ``without``."""
        kept = {name: value for name, value in self.chosen.items() if name not in without}
        return replace(self, chosen=kept | chosen)  # type: ignore[type-var]

    def pool_candidates(self) -> tuple[Self, ...]:
        """Return this kind with each pool to try, or alone where there is nothing to choose."""
        return tuple(self.bind_chosen(pool=pool) for pool in self.pools) if self.pooled and self.pools[1:] else (self,)

    def in_one_window(self) -> Self:
        """Return this kind for synthetic texts, which all fit."""
        return self.bind_chosen("stride", "pool")

    def overlap(self, max_length: int) -> int:
        """Return how many tokens two windows of that length share."""
        return int(self.chosen.get("stride", max_length // 3))

    def read_as(self, length: int, longest: int, *, taught: bool = False) -> tuple[int, int]:
        """Return how many token rows a row of texts of ``length`` tokens is, and the tokens of each, if the task
        takes ``longest``; ``taught``: while it is learnt from."""
        texts = self.texts_taught if taught else self.texts_answered
        if not self.windows or length <= longest:
            return texts, length
        return texts * (1 - (longest - length) // (longest - self.overlap(longest))), longest

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        """Divide a row, as ``Row.readable`` or a caller gives it, into texts and pairs, if it is ``several_texts``."""
        raise UsageError(f"{self.title} reads a row as one text or pair.")

    def read(self, rows: Sequence[Row]) -> tuple[list[Text], list[int] | None]:
        """Return all rows' token rows, and how many each row is; None if each is one."""
        if not self.several_texts:
            return [Text(row.sentence1, row.sentence2) for row in rows], None
        found = [self.token_rows(row.readable, row.where) for row in rows]
        return [Text(*text) for of_row in found for text in of_row], [*map(len, found)]

    def tokens(
        self, encoder: TextEncoder, texts: Sequence[Text], max_length: int, names: Sequence[str] = ()
    ) -> TokenBatch:
        """Tokenize texts, cut at the maximal length or in windows."""
        if not self.windows:
            return encoder.encode(texts, max_length)
        return encoder.windows(texts, max_length, self.overlap(max_length), names, second=self.passages)

    def grouping(self, tokens: TokenBatch, per_row: Sequence[int] | None) -> RowGrouping:
        """Say how token rows make rows of ``per_row`` texts."""
        if not self.windows:
            return RowGrouping(per_row=per_row)
        return RowGrouping(tokens.per_text, per_row, stitches=stitches_of(tokens) if self.stitches else None)

    def require_sound_windows(self) -> None:
        """Refuse what a card cannot say of windows."""
        stride, pool = self.chosen.get("stride", 1), self.chosen.get("pool", self.pools[0])
        if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
            raise ValueError(f"the stride of its windows is a whole number from 1; found {stride!r}")
        if self.windows and self.writes:
            raise ValueError("a task that writes text reads no windows")
        if pool not in self.pools or ("pool" in self.chosen and not self.pooled):
            raise ValueError(f"the pool of its windows is {pool!r}")

    @classmethod
    def resolve_long(cls, long: str | None, stride: int | None) -> str:
        """Return how long texts are read, ``cut`` or ``windows``, after a check of what is asked."""
        usual = WINDOWS if cls.passages else CUT
        if cls.writes and long == WINDOWS:
            raise UsageError(
                "--long windows: a text that is written cannot be pooled of what is written for each window; leave it "
                "out, or give a greater --max-length."
            )
        if cls.passages and long == CUT:
            raise UsageError("--long cut: answers are searched in all of a passage, in windows; leave it out.")
        if stride is not None and (long or usual) == CUT:
            raise UsageError("--stride is what windows share; give --long windows too, or leave it out.")
        return long or usual

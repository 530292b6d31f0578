"""What a kind of task says of texts that are longer than the model: they are cut, or read in windows that overlap.

Of what is ``chosen`` for a task, ``stride`` is how many tokens two windows share; without it texts are cut.  A kind
that answers once for a text makes one answer of the logits of all its windows: it is taught by their mean (the loss is
that of the pooled logits, not of each window), and ``pool`` says what was better on the evaluation rows.  One that
answers for each token takes each of the window where it has most context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from edgepeft.common.errors import UsageError
from edgepeft.tasks._facts import Facts

__all__ = ["CUT", "WINDOWS", "Long"]

CUT, WINDOWS = "cut", "windows"


class Long(Facts):
    """Base of ``TaskType``."""

    texts_answered: ClassVar[int] = 1  # of a row, where only their number matters
    texts_taught: ClassVar[int] = 1
    chosen: Mapping[str, Any]

    @property
    def windows(self) -> bool:
        """Whether a long text is read in windows."""
        return self.passages or "stride" in self.chosen

    @property
    def stitches(self) -> bool:
        """Whether each token's answer is taken of one of the windows that it stands in."""
        return self.windows and self.per_token and not self.passages

    @property
    def pooled(self) -> bool:
        """Whether the logits of a text's windows become one answer."""
        return self.windows and not self.per_token

    @property
    def pool(self) -> str:
        """What is made of a text's windows."""
        return str(self.chosen.get("pool", self.pools[0]))

    def pooling(self) -> tuple[Self, ...]:
        """This kind with each of the pools that may be better, where there are several."""
        if not self.pooled or len(self.pools) < 2:
            return (self,)
        return tuple(replace(self, chosen={**self.chosen, "pool": pool}) for pool in self.pools)  # type: ignore[type-var]

    def in_one_window(self) -> Self:
        """This kind as of texts that all fit, where only time matters."""
        chosen = {name: value for name, value in self.chosen.items() if name not in ("stride", "pool")}
        return replace(self, chosen=chosen)  # type: ignore[type-var]

    def overlap(self, max_length: int) -> int:
        """How many tokens two windows of that length share."""
        return int(self.chosen.get("stride", max_length // 3))

    def read_as(self, length: int, longest: int, *, taught: bool = False) -> tuple[int, int]:
        """The token rows that a row of texts of ``length`` tokens is, and the tokens of each, where the task takes
        ``longest``; ``taught``: while it is learnt from."""
        texts = self.texts_taught if taught else self.texts_answered
        if not self.windows or length <= longest:
            return texts, length
        return texts * (1 - (longest - length) // (longest - self.overlap(longest))), longest

    def require_sound_windows(self) -> None:
        """See that what a card says of windows can be.

        Raises:
            ValueError: it cannot.
        """
        stride, pool = self.chosen.get("stride", 1), self.chosen.get("pool", self.pools[0])
        if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
            raise ValueError(f"the stride of its windows is a whole number from 1; found {stride!r}")
        if self.windows and self.writes:
            raise ValueError("a task that writes text reads no windows")
        if pool not in self.pools or ("pool" in self.chosen and not self.pooled):
            raise ValueError(f"the pool of its windows is {pool!r}")

    @classmethod
    def long_asked(cls, long: str | None, stride: int | None) -> str:
        """How long texts are read, where that is asked for, with so many tokens that windows share.

        Raises:
            UsageError: this kind cannot.
        """
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

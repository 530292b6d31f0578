"""Texts that are read in windows: where the tokens of each window stand in the text, and what the windows cost.

Letters: n rows, R windows of all of them, S tokens of the longest, k tokens of the text in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import TokenBatch, cleaned

__all__ = ["Asked", "Passage", "Spread", "most_context", "passage_of", "readable", "stitches_of", "token_places"]


@dataclass(frozen=True)
class Passage:
    """A text, and by window the ``places`` [k] of its tokens in the token row and their ``offsets`` [k, 2] in the text,
    in Python's characters."""

    text: str
    places: tuple[NDArray[np.int64], ...]
    offsets: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Asked:
    """A row: its passage, all right ``answers``, and what is ``wanted`` [windows, ...] of each window in the loss."""

    passage: Passage
    answers: tuple[str, ...]
    wanted: NDArray[np.int64]


def passage_of(text: str, windows: Sequence[Any]) -> Passage:
    """From the tokenizer's encodings of the pair, of which the passage is the second part."""
    places, offsets = [], []
    for window in windows:
        parts = zip(window.sequence_ids, window.offsets, strict=True)
        own = [(i, *span) for i, (part, span) in enumerate(parts) if part == 1 and span[1] > span[0]]
        found = np.array(own, np.int64).reshape(-1, 3)
        places.append(found[:, 0])
        offsets.append(found[:, 1:])
    return Passage(cleaned(text), tuple(places), tuple(offsets))


def readable(passages: Sequence[Passage], length: int) -> NDArray[np.bool_]:
    """[R, length]: the first token, which stands for no answer, and those of the passage."""
    every = [places for passage in passages for places in passage.places]
    found = np.zeros((len(every), length), bool)
    found[:, 0] = True
    for row, places in zip(found, every, strict=True):
        row[places] = True
    return found


def token_places(read: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[R, S]: where those tokens stand among all, [R S]; -1 where one is not to be read."""
    return np.where(read, np.arange(read.size).reshape(read.shape), -1)


def stitches_of(batch: TokenBatch) -> list[NDArray[np.int64]]:
    """For each text ``most_context``."""
    return [most_context(*each, batch.overlap) for each in zip(batch.whole, batch.windows, strict=True)]


def most_context(whole: Any, windows: Sequence[Any], overlap: int) -> NDArray[np.int64]:
    """int64 [tokens of the whole text, 2]: the window in which each has most context, and its place there.

    That is the lesser of what stands to its left and to its right, and a hundredth of the window's length, in BERT's
    own reading of SQuAD (``_check_is_max_context`` of run_squad.py; Devlin et al., 2019); of equals the first.  Special
    tokens are those of the first window, or after the text of the last.
    """
    own = [_of_text(window) for window in (whole, *windows)]
    n_tokens, n_last = len(whole.ids), len(windows[-1].ids)
    found = np.tile(np.arange(n_tokens)[:, None], (1, 2))
    found[:, 0] = 0
    if len(own[0]):
        after = np.arange(own[0][-1] + 1, n_tokens)
        found[after] = np.stack([np.full(len(after), len(windows) - 1), after + n_last - n_tokens], axis=1)
    best, step = np.full(len(own[0]), -1.0), len(own[1]) - overlap
    for k, places in enumerate(own[1:]):
        at = np.arange(len(places))
        context = np.minimum(at, at[::-1]) + 0.01 * len(places)
        there = k * step + at
        better = context > best[there]
        best[there[better]] = context[better]
        found[own[0][there[better]]] = np.stack([np.full(int(better.sum()), k), places[better]], axis=1)
    return found


def _of_text(window: Any) -> NDArray[np.int64]:
    """The places of the tokens that are no special ones."""
    return np.flatnonzero([part is not None for part in window.sequence_ids])


class Spread(NamedTuple):
    """So many ``texts`` in so many ``windows``, ``most`` of one text; ``longer`` are in more than one."""

    texts: int = 0
    windows: int = 0
    most: int = 0
    longer: int = 0

    @classmethod
    def of(cls, per_text: Sequence[int] | NDArray[Any]) -> Self:
        """Of so many windows each text."""
        counts = np.asarray(per_text, np.int64)
        return cls(len(counts), int(counts.sum()), int(counts.max(initial=0)), int((counts > 1).sum()))

    def and_of(self, other: Spread, times: int = 1) -> Spread:
        """Both together; the other one's as often as tasks read them."""
        sums = (a + times * b for a, b in zip(self, other, strict=True))
        return Spread(*sums)._replace(most=max(self.most, other.most))

    def __str__(self) -> str:
        mean = self.windows / max(1, self.texts)
        return f"{mean:.2f} windows a text, at most {self.most}; {self.longer:,} of {self.texts:,} texts in several"

"""Passages that are read in windows beside a question: where the tokens of each window stand in the passage.

Letters: n rows, R windows of all of them, S tokens of the longest, k tokens of the passage in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import cleaned

__all__ = ["Asked", "Passage", "passage_of", "readable", "token_places"]


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

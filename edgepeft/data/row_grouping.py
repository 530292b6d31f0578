"""Group token rows into rows of data, such as a text with each of its candidates.

A row is one text or several, and a text that is longer than the model is read in one window or several.  Engines
compute token rows, which are windows, all of a row's in one batch and one after another; a kind of task sees them row
by row: what answers once for a text pools its windows, what answers for each token takes each token of one window.

Letters: n rows, T texts of all of them, R token rows, K of the row that has most, S tokens of the longest, k tokens of
the text in a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import TokenBatch, cleaned

LOWEST = -1e30  # a logit where a row has no such token row: of probability 0, and no infinity that could become NaN


def places_of(counts: Sequence[int] | NDArray[Any], most: int | None = None) -> NDArray[np.int64]:
    """Return the index of each row's token rows among all, int64 [n, K], -1 past its last one; ``most`` is K if it is
    not the largest of ``counts``."""
    sizes = np.asarray(counts, np.int64)[:, None]
    columns = np.arange(int(sizes.max(initial=1)) if most is None else most)
    starts = np.cumsum(sizes, axis=0) - sizes
    return np.where(columns < sizes, starts + columns, -1)


def grouped(values: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Group [R, ...] by row, [n, K, ...], LOWEST where a row has no such token row."""
    found: NDArray[Any] = values[places.clip(min=0)]
    found[places < 0] = LOWEST
    return found


def members(counts: NDArray[Any], chosen: Sequence[int]) -> list[int]:
    """List the token rows of the chosen rows, in their order."""
    ends = np.cumsum(counts)
    return [place for row in chosen for place in range(int(ends[row] - counts[row]), int(ends[row]))]


def _mean(values: NDArray[np.float64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.add.reduceat(values, starts) / counts[:, None]


def _direction(values: NDArray[np.float64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Scale means of several vectors to length 1; a single one is of length 1 already."""
    means = _mean(values, starts, counts)
    lengths = np.where(counts > 1, np.linalg.norm(means, axis=1), 1.0)
    return means / np.maximum(lengths, 1e-12)[:, None]


POOLS: Mapping[str, Callable[..., NDArray[np.float64]]] = {
    "mean": _mean,
    "max": lambda values, starts, _: np.maximum.reduceat(values, starts),
    "direction": _direction,
}
"""Combine the answers of a text's windows; a single window passes through unchanged, to the bit."""


def pooled(values: NDArray[Any], per_text: Sequence[int] | NDArray[Any], pool: str) -> NDArray[Any]:
    """Pool the windows of each text, [R, d] -> [T, d]."""
    counts = np.asarray(per_text, np.int64)
    found: NDArray[Any] = POOLS[pool](values.astype(np.float64), np.cumsum(counts) - counts, counts)
    return found.astype(values.dtype)


def mean_matrix(per_text: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
    """Return the matrix [T, R] that takes the mean of each text's windows of logits [R, d]; kinds are taught by it."""
    counts = np.asarray(per_text, np.int64)
    own = np.repeat(np.arange(len(counts)), counts) == np.arange(len(counts))[:, None]
    return (own / counts[:, None]).astype(np.float32)


def stitched(values: NDArray[Any], stitches: Sequence[NDArray[np.int64]], per_text: Sequence[int]) -> NDArray[Any]:
    """Take each token's value from the window and the place that ``stitches`` [S of this text, 2] say:
    [R, S of a window, ...] -> [T, S of a text, ...], 0 past a text's last token."""
    found = np.zeros((len(stitches), max(map(len, stitches)), *values.shape[2:]), values.dtype)
    first = 0
    for row, where, count in zip(found, stitches, per_text, strict=True):
        row[: len(where)] = values[first + where[:, 0], where[:, 1]]
        first += count
    return found


@dataclass(frozen=True)
class RowGrouping:
    """Map token rows (windows, candidates) to rows of data."""

    per_text: Sequence[int] | NDArray[Any] | None = None  # [T], windows of each text, where texts are read in windows
    per_row: Sequence[int] | NDArray[Any] | None = None  # [n], texts of each row, where a row is several
    most: int | None = None  # texts of the row that has most
    stitches: Sequence[NDArray[np.int64]] | None = None  # of each text's tokens the window, where logits are of tokens
    read: NDArray[np.bool_] | None = None  # [R, S], which tokens can be answers, in windows of passages

    def by_row(self, values: NDArray[Any], pool: str) -> NDArray[Any]:
        """Group [R, ...] as a kind of task sees its rows, [n, ...] or [n, K, ...]; ``LOWEST`` where a row has no such
        token row, or a window no place for an answer."""
        if self.per_text is not None:
            if self.read is not None:
                own = values[:, : self.read.shape[1]]  # of a batch with others these may be wider
                of_passages = np.where(self.read[..., None], own, np.asarray(LOWEST, values.dtype))
                return grouped(of_passages, places_of(self.per_text))
            if self.stitches is not None:
                return stitched(values, self.stitches, list(self.per_text))
            values = pooled(values, self.per_text, pool)
        return values if self.per_row is None else grouped(values, places_of(self.per_row, self.most))


@dataclass(frozen=True)
class Passage:
    """A text, and where its tokens stand, by window."""

    text: str
    places: tuple[NDArray[np.int64], ...]  # [k] each, in the token row
    offsets: tuple[NDArray[np.int64], ...]  # [k, 2] each, in the text, in Python's characters


@dataclass(frozen=True)
class Asked:
    """A row that asks about a passage."""

    passage: Passage
    answers: tuple[str, ...]  # all right ones
    wanted: NDArray[np.int64]  # [windows, ...], of each window in the loss


def passage_of(text: str, windows: Sequence[Any]) -> Passage:
    """Read a passage from the tokenizer's encodings of a pair, of which it is the second part."""
    places, offsets = [], []
    for window in windows:
        parts = zip(window.sequence_ids, window.offsets, strict=True)
        own = [(i, *span) for i, (part, span) in enumerate(parts) if part == 1 and span[1] > span[0]]
        found = np.array(own, np.int64).reshape(-1, 3)
        places.append(found[:, 0])
        offsets.append(found[:, 1:])
    return Passage(cleaned(text), tuple(places), tuple(offsets))


def wanted_of(passage: Passage, answers: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """Place the first answer's first and last token, [windows, 2]; (0, 0) if a window has not all of it."""
    found = np.zeros((len(passage.places), 2), np.int64)
    for i, (places, offsets) in enumerate(zip(passage.places, passage.offsets, strict=True)):
        if not answers or not len(places):
            continue
        (start, text), (starts, ends) = answers[0], offsets.T
        end = start + len(text)
        if starts[0] <= start and ends[-1] >= end:
            first = starts[np.searchsorted(starts, start, "right") - 1]
            last = ends[np.searchsorted(ends, end)]
            # Several tokens may be of one character, which an emoji's bytes are.
            found[i] = places[np.searchsorted(starts, first)], places[np.searchsorted(ends, last, "right") - 1]
    return found


def windows_of(targets: NDArray[Any]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return of each window of these rows the places of its tokens, and of its first and last wanted one."""
    return [pair for target in targets for pair in zip(target.passage.places, target.wanted, strict=True)]


def readable(passages: Sequence[Passage], length: int) -> NDArray[np.bool_]:
    """Mark the first token, which stands for no answer, and those of the passage, [R, length]."""
    every = [places for passage in passages for places in passage.places]
    found = np.zeros((len(every), length), bool)
    found[:, 0] = True
    for row, places in zip(found, every, strict=True):
        row[places] = True
    return found


def token_places(read: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Place the tokens that are ``read`` [R, S] among all [R S], -1 for the others."""
    return np.where(read, np.arange(read.size).reshape(read.shape), -1)


def stitches_of(batch: TokenBatch) -> list[NDArray[np.int64]]:
    """Return ``most_context`` of each text."""
    return [most_context(*each, batch.overlap) for each in zip(batch.whole, batch.windows, strict=True)]


def most_context(whole: Any, windows: Sequence[Any], overlap: int) -> NDArray[np.int64]:
    """Find the window in which each token has most context, and its place there: int64 [tokens of the whole text, 2].

    Context is the lesser of what stands to its left and to its right, and a hundredth of the window's length, as in
    BERT's own reading of SQuAD (``_check_is_max_context`` of run_squad.py; Devlin et al., 2019); of equals the first.
    Special tokens are those of the first window, or after the text of the last.
    """
    own = [np.flatnonzero([part is not None for part in window.sequence_ids]) for window in (whole, *windows)]
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


class Spread(NamedTuple):
    """So many ``texts`` in so many ``windows``, ``most`` of one text; ``longer`` are in more than one."""

    texts: int = 0
    windows: int = 0
    most: int = 0
    longer: int = 0

    @classmethod
    def of(cls, per_text: Sequence[int] | NDArray[Any]) -> Self:
        """Count texts of so many windows each."""
        counts = np.asarray(per_text, np.int64)
        return cls(len(counts), int(counts.sum()), int(counts.max(initial=0)), int((counts > 1).sum()))

    def and_of(self, other: Spread, times: int = 1) -> Spread:
        """Add the other's texts, as often as tasks read them."""
        sums = (a + times * b for a, b in zip(self, other, strict=True))
        return Spread(*sums)._replace(most=max(self.most, other.most))

    def __str__(self) -> str:
        mean = self.windows / max(1, self.texts)
        return f"{mean:.2f} windows a text, at most {self.most}; {self.longer:,} of {self.texts:,} texts in several"

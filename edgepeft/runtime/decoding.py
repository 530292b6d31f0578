"""Which tokens a text goes on with: greedily, or by beams, token for token as transformers' ``generate`` chooses them.

    score of a text = sum of log p(token) / n^length_penalty,   n tokens, the one that ends it counted

A row keeps its best ``beams`` open texts and as many ended ones; it is done when the best open one, ended now, would
be no better than the worst that has ended.  A single beam takes the likeliest token, and is done when that ends it.

Letters: R rows, k texts of a row (1 in the first step, then n beams), v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError
from edgepeft.runtime.grammar import Guide

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Decoding:
    """How texts are written: at most ``max_new_tokens`` each; ``no_repeat_ngram`` of 0 lets anything stand twice.

    Without ``ends`` the token that ends a text is one like others, so that each has as many as it may have.
    """

    max_new_tokens: int = 128
    beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram: int = 0
    ends: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 1), ("beams", 1), ("no_repeat_ngram", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; {least} is the least that there can be.")
        if not np.isfinite(self.length_penalty):
            raise UsageError(f"length_penalty is {self.length_penalty}; give a finite number, such as 1.")

    def end(self, token: int) -> int:
        """``token``, which ends texts, or one that never comes."""
        return token if self.ends else -1


GREEDY = Decoding()


class Written(NamedTuple):
    """A text's tokens, without those that start and end it; ``ended`` is false where it reached the bound."""

    tokens: tuple[int, ...]
    ended: bool


class _Text(NamedTuple):
    tokens: tuple[int, ...]  # the start's too
    score: np.float32  # the sum of its tokens' log-probabilities
    parent: int = 0  # which of the row's texts of the step before it continues


@dataclass
class Row:
    """A row's texts while they are written: open ones, best first, and ended ones; a ``guide`` leads a single one."""

    open: list[_Text]
    ended: list[tuple[np.float32, _Text]] = field(default_factory=list)
    most: int | None = None  # tokens
    guide: Guide | None = None
    read: tuple[int, ...] = ()  # the prompt's tokens, of which no n-gram may come again either

    @classmethod
    def starting(
        cls, token: int, most: int | None = None, guide: Guide | None = None, read: tuple[int, ...] = ()
    ) -> Row:
        """One open text, which is empty."""
        return cls([_Text((token,), np.float32(0))], most=most, guide=guide, read=read)

    def best(self, end: int) -> Written:
        """The best text that was written."""
        tokens = self.ended[0][1].tokens[1:]
        ended = tokens[-1] == end
        return Written(tokens[:-1] if ended else tokens, ended)

    def take(self, candidates: Sequence[_Text], decoding: Decoding, end: int) -> bool:
        """Go on with candidates, which are sorted; whether the row is done."""
        length = len(candidates[0].tokens) - 1
        if self.guide is not None:
            self.guide.take(candidates[0].tokens[-1])
            if self.guide.ended and candidates[0].tokens[-1] != end:  # no step is needed to know what comes
                candidates = [candidates[0]._replace(tokens=(*candidates[0].tokens, end))]
        last = length in (decoding.max_new_tokens, self.most)
        n, divisor = decoding.beams, length**decoding.length_penalty
        ends = [last or text.tokens[-1] == end for text in candidates]
        # Of twice as many candidates as beams, those of the second half only fill up what goes on.
        new = [(text.score / divisor, text) for text, over in zip(candidates[:n], ends, strict=False) if over]
        self.ended = sorted([*self.ended, *new], key=lambda each: -each[0])[:n]
        self.open = [text for text, over in zip(candidates, ends, strict=True) if not over][:n]
        if not self.open:
            return True
        return len(self.ended) == n and bool(self.open[0].score / divisor <= self.ended[-1][0])


class Choice(NamedTuple):
    """Input of the next step: the rows that go on, each text's last token, and which of this step it continues."""

    rows: list[int]
    ids: NDArray[np.int64]
    order: NDArray[np.int64]


def choose(rows: Sequence[Row], logits: Floats, decoding: Decoding, end: int) -> Choice:
    """Go on with what ``logits`` [R k, v] make likeliest, row by row; changes both."""
    texts = [(text, row) for row in rows for text in row.open]
    # Before anything is banned, for probabilities are of all tokens; a single beam needs none.
    values = logits if decoding.beams == 1 else log_probabilities(logits)
    n = decoding.no_repeat_ngram
    for (text, row), of_text in zip(texts, values, strict=True):
        if n and row.guide is None:  # a grammar may ask for what stood there before
            tokens = row.read + text.tokens
            last = tokens[len(tokens) + 1 - n :]
            twice = [tokens[i + n - 1] for i in range(len(tokens) - n + 1) if tokens[i : i + n - 1] == last]
            of_text[twice] = -np.inf
    k = len(rows[0].open)
    going, ids, order = [], [], []
    for number, (row, candidates) in enumerate(zip(rows, _candidates(rows, values, decoding.beams), strict=True)):
        if not row.take(candidates, decoding, end):
            going.append(number)
            ids += [text.tokens[-1] for text in row.open]
            order += [number * k + text.parent for text in row.open]
    return Choice(going, np.array(ids, np.int64), np.array(order, np.int64))


def _candidates(rows: Sequence[Row], values: Floats, beams: int) -> Iterator[list[_Text]]:
    """Yield the best continuations of each row, the best first: one, or two a beam, so that enough are left open."""
    if beams == 1:
        for row, token in zip(rows, values.argmax(1).tolist(), strict=True):
            yield [_Text((*row.open[0].tokens, token), np.float32(0))]
        return
    k, v = len(rows[0].open), values.shape[1]
    for row, of_row in zip(rows, values.reshape(len(rows), k, v), strict=True):
        total = (of_row + np.array([[text.score] for text in row.open], np.float32)).reshape(-1)
        best = np.argpartition(total, -2 * beams)[-2 * beams :]
        best = best[np.argsort(-total[best], kind="stable")]
        yield [_Text((*row.open[i // v].tokens, i % v), total[i], i // v) for i in best.tolist()]


def log_probabilities(logits: Floats) -> Floats:
    """[., v] -> [., v]."""
    shifted = logits - logits.max(-1, keepdims=True)
    likely: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return likely

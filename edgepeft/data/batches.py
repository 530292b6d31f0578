"""Tokenized rows, and the batches of an epoch: similar lengths together, in an order that is a function of the seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.tokens import TextEncoder, pad_rows
from edgepeft.common.errors import DataError
from edgepeft.data.columns import NO_TARGET
from edgepeft.data.parts import PARTS, TaskData
from edgepeft.data.row_grouping import RowGrouping, mean_matrix, members, places_of, readable, stitches_of, token_places
from edgepeft.data.rows import Row
from edgepeft.data.words import at_tokens
from edgepeft.tasks.base import TaskType

CHUNK = 512  # rows tokenized at once: padding to the longest of all would take a multiple of the memory
POOL = 16  # batches whose rows are sorted by length together: most padding goes, batches stay random


class Writing(NamedTuple):
    """Of text that is written."""

    max_length: int  # the most tokens of a target, its end included
    start_token_id: int  # any of text that goes on with what was read: nothing reads it
    end_token_id: int
    words: int  # that the decoder knows

    @classmethod
    def by(cls, architecture: Architecture, longest: int | None) -> Self | None:
        """Return what the architecture's decoder writes by; None if it has none, or no text is written."""
        decoder = architecture.decoder
        if decoder is None or longest is None:
            return None
        start = architecture.pad_token_id if decoder.start_token_id is None else decoder.start_token_id
        return cls(longest, start, decoder.end_token_id, architecture.vocab_size)


@dataclass(frozen=True)
class Encoded:
    """Rows without padding; where one is several token rows, these follow each other, and batches hold whole rows."""

    columns: dict[str, list[NDArray[np.int64]]]  # by input name, of each token row
    targets: NDArray[Any]  # [n, ...], what the kind's loss takes; arrays of tokens where text is written
    truncated: int  # texts that lost tokens
    pad_token_id: int
    writing: Writing | None = None
    references: tuple[tuple[str, ...], ...] = ()  # all right answers of each row, where text is written
    cut: int = 0  # targets that lost their ends
    per_token: bool = False  # logits are of tokens, and targets so too in a batch
    per_row: NDArray[np.int64] | None = None  # [n], the token rows of each row, where it may be several
    several: bool = False
    per_text: tuple[NDArray[np.int64], ...] | None = None  # of each row, the windows of each of its texts
    passages: bool = False  # token rows are windows of passages
    stitches: tuple[NDArray[np.int64], ...] | None = None  # the window, and the place there, of each token of a text

    @property
    def token_lengths(self) -> list[int]:
        """Tokens of each token row."""
        return [len(row) for row in self.columns["input_ids"]]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row: of its longest token row."""
        if self.per_row is None:
            return self.token_lengths
        lengths, ends = self.token_lengths, np.cumsum(self.per_row)
        return [max(lengths[end - n : end]) for n, end in zip(self.per_row, ends, strict=True)]

    @property
    def most(self) -> int:
        """Token rows of the row that has most, of those that a step computes together."""
        return 1 if self.per_row is None or self.windowed else int(self.per_row.max())

    @property
    def windowed(self) -> bool:
        """True if each window has a loss of its own: of passages, or of tokens."""
        return self.passages or self.stitches is not None

    def token_rows(self, chosen: Sequence[int]) -> list[int]:
        """Return the places of those rows' token rows in ``columns``."""
        return list(chosen) if self.per_row is None else members(self.per_row, chosen)

    def counts(self, chosen: Sequence[int]) -> NDArray[np.int64]:
        """Count the token rows of each of those rows, [batch]."""
        return np.ones(len(chosen), np.int64) if self.per_row is None else self.per_row[list(chosen)]

    def places(self, chosen: Sequence[int]) -> NDArray[np.int64] | None:
        """Place the texts of each of those rows in their batch, [batch, most], -1 past its last; None if a row is one
        text.  Of passages place each one's tokens among the batch's, [token rows, length], -1 where no answer can be.
        """
        if self.passages:
            return token_places(self.readable(chosen))
        return places_of(self.texts(chosen), self._most_texts) if self.several else None

    def texts(self, chosen: Sequence[int]) -> NDArray[np.int64]:
        """Count the texts of each of those rows, [batch]."""
        if self.per_text is None or self.passages:
            return self.counts(chosen)
        return np.array([len(self.per_text[i]) for i in chosen], np.int64)

    @property
    def _most_texts(self) -> int:
        return int(self.texts(range(len(self.targets))).max())

    def windows(self, chosen: Sequence[int]) -> list[NDArray[np.int64]] | None:
        """Count the windows of each text of each of those rows, if their logits are pooled."""
        return None if self.per_text is None or self.windowed else [self.per_text[i] for i in chosen]

    def pooling(self, chosen: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the matrix of the means over each text's windows, [texts, token rows]; None if none is taken."""
        windows = self.windows(chosen)
        return None if windows is None else mean_matrix(np.concatenate(windows))

    def readable(self, chosen: Sequence[int]) -> NDArray[np.bool_]:
        """Mark where the answer of each window of those rows can be, [token rows, longest]."""
        longest = max(self.token_lengths[i] for i in self.token_rows(chosen))
        return readable([self.targets[i].passage for i in chosen], longest)

    def of_texts(self, values: NDArray[Any], chosen: Sequence[int]) -> NDArray[Any]:
        """Join the windows of each text of those rows, [token rows, ...] -> [texts, ...]; passages stay in theirs."""
        return values if self.passages else replace(self.grouping(chosen), per_row=None).by_row(values, "mean")

    def grouping(self, chosen: Sequence[int]) -> RowGrouping:
        """Say how the token rows of those rows make rows."""
        several = self.several and not self.passages
        return RowGrouping(
            None if self.per_text is None else np.concatenate([self.per_text[i] for i in chosen]),
            self.texts(chosen) if several else None,
            self._most_texts if several else None,
            None if self.stitches is None else [self.stitches[i] for i in chosen],
            self.readable(chosen) if self.passages else None,
        )

    @property
    def longest_target(self) -> int:
        """Tokens of the longest target; 0 if no text is written."""
        return 0 if self.writing is None else max(map(len, self.targets))

    def batch(self, chosen: Sequence[int]) -> tuple[dict[str, NDArray[np.int64]], NDArray[Any]]:
        """Return the model's inputs [token rows, longest] and the targets [batch, ...] of those rows."""
        fill, read = {"input_ids": self.pad_token_id}, self.token_rows(chosen)
        inputs = {
            name: pad_rows([rows[i].tolist() for i in read], fill.get(name, 0)) for name, rows in self.columns.items()
        }
        if self.writing is not None:
            return inputs, pad_rows([self.targets[i].tolist() for i in chosen], NO_TARGET)
        if self.stitches is not None:  # each word's tag in the one window that answers for it
            tags, first = np.full(inputs["input_ids"].shape, NO_TARGET), 0
            for i, count in zip(chosen, self.counts(chosen), strict=True):
                where = self.stitches[i]
                tags[first + where[:, 0], where[:, 1]] = at_tokens(self.targets[[i]], len(where))[0]
                first += count
            return inputs, tags
        if self.passages:
            return inputs, np.concatenate([self.targets[i].wanted for i in chosen])
        if self.per_token:
            return inputs, at_tokens(self.targets[list(chosen)], inputs["input_ids"].shape[1])
        return inputs, self.targets[list(chosen)]


def encode(
    rows: Sequence[Row],
    kind: TaskType,
    encoder: TextEncoder,
    max_length: int,
    pad: int,
    *,
    writing: Writing | None = None,
) -> Encoded:
    """Tokenize every row once; the targets are its kind's, or with ``writing`` tokens."""
    columns: dict[str, list[NDArray[np.int64]]] = {}
    truncated, targets = 0, list[NDArray[Any]]()
    texts, of_rows = kind.read(rows)
    per_row = None if of_rows is None else np.array(of_rows, np.int64)
    names = [row.where for row, n in zip(rows, of_rows or [1] * len(rows), strict=True) for _ in range(n)]
    counts, stitches = list[int](), list[NDArray[np.int64]]()
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        tokens = kind.tokens(encoder, texts[part], max_length, names[part])
        counts += tokens.per_text
        truncated += tokens.truncated
        if kind.stitches:
            stitches += stitches_of(tokens)
        if kind.per_token:
            targets.append(kind.targets_at_tokens(rows[part], tokens))
        lengths = tokens.inputs["attention_mask"].sum(axis=1)
        for name, padded in tokens.inputs.items():
            values = (row[:length].copy() for row, length in zip(padded, lengths, strict=True))
            columns.setdefault(name, []).extend(values)
    if writing is not None:
        written, cut = np.empty(len(rows), object), 0  # each target's tokens, with the one that ends it
        for i, row in enumerate(rows):
            ids = encoder.plain_ids(row.label or "")
            if not ids:
                raise DataError(
                    f"{row.where}: the target {row.label!r} has no token that the backbone knows; correct it."
                )
            cut += len(ids) >= writing.max_length
            written[i] = np.array([*ids[: writing.max_length - 1], writing.end_token_id], np.int64)
        references = tuple(row.references or (row.label or "",) for row in rows)
        return Encoded(columns, written, truncated, pad, writing, references, cut)
    wanted = np.concatenate(targets) if kind.per_token else kind.targets(rows)
    more: dict[str, Any] = {"per_token": kind.per_token, "several": kind.several_texts}
    if kind.windows:
        ends = np.cumsum(np.ones(len(rows), int) if per_row is None else per_row)
        per_text = tuple(np.split(np.array(counts, np.int64), ends[:-1]))
        per_row = np.array([each.sum() for each in per_text], np.int64)
        more |= {"per_text": per_text, "passages": kind.passages, "stitches": tuple(stitches) or None}
    return Encoded(columns, wanted, truncated, pad, per_row=per_row, **more)


def encode_parts(
    data: TaskData, encoder: TextEncoder, max_length: int, pad: int, *, writing: Writing | None = None
) -> dict[str, Encoded]:
    """Tokenize the rows of a run by part: train, eval, test."""
    return {p: encode(getattr(data, p), data.task_kind, encoder, max_length, pad, writing=writing) for p in PARTS}


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Batch every row once; a pure function, so a resumed run needs no more than the number of its step."""
    order = _shuffled(range(len(lengths)), f"{seed}/{epoch}/row")
    pools = _cut(order, POOL * batch_size)
    batches = [batch for pool in pools for batch in _cut(sorted(pool, key=lambda i: -lengths[i]), batch_size)]
    return [batches[i] for i in _shuffled(range(len(batches)), f"{seed}/{epoch}/batch")]


def sorted_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Batch every row once, longest first: for evaluation, where the order changes nothing."""
    return _cut(sorted(range(len(lengths)), key=lambda i: -lengths[i]), batch_size)


def _cut(items: Sequence[int], size: int) -> list[list[int]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _shuffled(items: Sequence[int], salt: str) -> list[int]:
    # A hash, not a generator: the stream of a generator may change with its library's version.
    return sorted(items, key=lambda item: hashlib.sha256(f"{salt}/{item}".encode()).digest())

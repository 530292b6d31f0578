"""Tokenized rows, and the batches of an epoch: similar lengths together, in an order that is a function of the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder, pad_rows
from edgepeft.data.parts import PARTS, TaskData, targets_of
from edgepeft.data.rows import Row

__all__ = ["Encoded", "encode", "encode_parts", "epoch_batches", "sorted_batches"]

CHUNK = 512  # rows tokenized at once: padding to the longest of all would take a multiple of the memory
POOL = 16  # batches whose rows are sorted by length together: most padding goes, batches stay random


@dataclass(frozen=True)
class Encoded:
    """Rows without padding: ``columns[name][i]`` are row i's values, ``targets`` [n] int64 or float32."""

    columns: dict[str, list[NDArray[np.int64]]]
    targets: NDArray[Any]
    truncated: int
    pad_token_id: int

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(row) for row in self.columns["input_ids"]]

    def batch(self, chosen: Sequence[int]) -> tuple[dict[str, NDArray[np.int64]], NDArray[Any]]:
        """The model's inputs [batch, longest] and targets [batch] of those rows."""
        fill = {"input_ids": self.pad_token_id}
        inputs = {
            name: pad_rows([rows[i].tolist() for i in chosen], fill.get(name, 0)) for name, rows in self.columns.items()
        }
        return inputs, self.targets[list(chosen)]


def encode(
    rows: Sequence[Row], labels: tuple[str, ...] | None, encoder: TextEncoder, max_length: int, pad: int
) -> Encoded:
    """Tokenize every row once; ``labels`` are a head's, None for a regression."""
    columns: dict[str, list[NDArray[np.int64]]] = {}
    truncated = 0
    for start in range(0, len(rows), CHUNK):
        texts = [Text(row.sentence1, row.sentence2) for row in rows[start : start + CHUNK]]
        tokens = encoder.encode(texts, max_length)
        truncated += tokens.truncated
        lengths = tokens.inputs["attention_mask"].sum(axis=1)
        for name, padded in tokens.inputs.items():
            values = (row[:length].copy() for row, length in zip(padded, lengths, strict=True))
            columns.setdefault(name, []).extend(values)
    targets = np.asarray(targets_of(rows, labels), np.float32 if labels is None else np.int64)
    return Encoded(columns, targets, truncated, pad)


def encode_parts(data: TaskData, encoder: TextEncoder, max_length: int, pad: int) -> dict[str, Encoded]:
    """The rows of a run by part: train, eval, test."""
    return {part: encode(getattr(data, part), data.labels, encoder, max_length, pad) for part in PARTS}


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every row once; a pure function, so a resumed run needs no more than the number of its step."""
    order = _shuffled(range(len(lengths)), f"{seed}/{epoch}/row")
    pools = _cut(order, POOL * batch_size)
    batches = [batch for pool in pools for batch in _cut(sorted(pool, key=lambda i: -lengths[i]), batch_size)]
    return [batches[i] for i in _shuffled(range(len(batches)), f"{seed}/{epoch}/batch")]


def sorted_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Every row once, longest first: for evaluation, where the order changes nothing."""
    return _cut(sorted(range(len(lengths)), key=lambda i: -lengths[i]), batch_size)


def _cut(items: Sequence[int], size: int) -> list[list[int]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _shuffled(items: Sequence[int], salt: str) -> list[int]:
    # A hash, not a generator: the stream of a generator may change with its library's version.
    return sorted(items, key=lambda item: hashlib.sha256(f"{salt}/{item}".encode()).digest())

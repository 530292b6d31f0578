"""A batch of token ids: what a model reads, and what is wrong with a batch that it cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.backbones.trie import Trie, trie_of
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import DataError
from edgepeft.data.pattern import UnreadableRow, pattern
from edgepeft.data.row_grouping import Spread
from edgepeft.data.rows import SENTENCES
from edgepeft.tasks.base import TaskType

Readable = str | tuple[str, str | None] | Mapping[str, Any]  # a text, a pair (a ``Text`` is one), or a row's columns
Inputs = Mapping[str, NDArray[np.int64]]  # input_ids, attention_mask and perhaps token_type_ids, each [batch, length]
_INT64 = np.dtype(np.int64)
_PLAIN = f"{{{SENTENCES.names[0]}}}"  # what a task reads of columns that is not posed as text


@dataclass
class Truncation:
    """Rows that lost tokens, texts not written to their end, and what was read in windows so far: for one note."""

    rows: int = 0
    texts: int = 0
    windows: Spread = field(default_factory=Spread)


def checked_inputs(inputs: Inputs, architecture: Architecture) -> dict[str, NDArray[np.int64]]:
    """Check and return those of ``inputs`` that the backbone reads."""
    names = architecture.inputs
    if missing := [name for name in names if name not in inputs]:
        raise DataError(f"the batch has no {' and no '.join(missing)}; this backbone reads {', '.join(names)}.")
    batch = {name: np.asarray(inputs[name]) for name in names}
    shape = batch["input_ids"].shape
    for name, values in batch.items():
        if values.dtype != _INT64:
            raise DataError(f"{name} holds {values.dtype}; int64 is needed: .astype('int64').")
        if values.ndim != 2 or values.shape != shape:
            raise DataError(f"{name} has shape {list(values.shape)}; every input is [batch, length] alike.")
    mask, ids = batch["attention_mask"], batch["input_ids"]
    if len(ids) == 1:
        # In Python's own numbers: with cold caches, as they are between two texts, NumPy's reductions take 30
        # microseconds more.
        row = ids[0].tolist()
        if row and 0 not in mask[0].tolist() and min(row) >= 0 and max(row) < architecture.vocab_size:
            return batch
    if not mask.size or np.count_nonzero(mask) < mask.size:
        check_rows(mask)
        ids = ids[mask != 0]
    if ids.size and ids.view(np.uint64).max() >= architecture.vocab_size:  # of a negative one this is greater, too
        last = architecture.vocab_size - 1
        raise DataError(f"input_ids are {ids.min()} to {ids.max()}; this backbone has embeddings of 0 to {last}.")
    return batch


class ReadRows(NamedTuple):
    """Rows as callers gave them, what is tokenized, and how many token rows each is, if a task reads several."""

    given: list[Any]
    texts: list[Text]
    per_row: list[int] | None = None

    @property
    def first(self) -> list[Text]:
        """Each row's first token row."""
        if self.per_row is None:
            return self.texts
        return [self.texts[end - n] for n, end in zip(self.per_row, accumulate(self.per_row), strict=True)]


def read_by(kind: TaskType, texts: object, source: str | None = None) -> ReadRows:
    """Read rows as callers give them: as ``texts_of`` does, or as the kind of task asks."""
    given = _listed(texts)
    if not kind.several:
        return ReadRows(given, texts_of(given, source))
    found = [kind.token_rows(one, f"row {row}") for row, one in enumerate(given)]
    return ReadRows(given, [Text(*text) for of_row in found for text in of_row], [*map(len, found)])


def _listed(texts: object) -> list[Any]:
    if isinstance(texts, (str, Mapping)) or not isinstance(texts, Iterable):
        return [texts]
    return list(texts)


def texts_of(texts: object, source: str | None = None) -> list[Text]:
    """Read texts as callers give them; one text is a list of one, and the second of a pair may be None.

    With ``source``, a task's pattern, each is what the row's columns make of it; a text alone is the one column.
    """
    return [
        Text(one) if source is None and type(one) is str else _text(one, source, f"row {row}")
        for row, one in enumerate(_listed(texts))
    ]


def _text(one: object, source: str | None, where: str) -> Text:
    if isinstance(one, Mapping) and source is not None:
        return Text(pattern(source).filled(one, where))
    first, second = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, None)
    if isinstance(one, Mapping):
        first, second = pattern(_PLAIN).filled(one, where), one.get(SENTENCES.names[1])
    if not isinstance(first, str) or not isinstance(second, str | None):
        raise DataError(f"{where}: a text, or a pair of texts (first, second), is needed; found {one!r:.60}.")
    if source is None:
        return Text(first, second)
    reads = pattern(source)
    names = reads.fields if second is None and len(reads.fields) == 1 else SENTENCES.names
    given = zip(names, (first, second), strict=False)
    return Text(reads.filled({name: value for name, value in given if value is not None}, where))


class Tokenizing:
    """A bundle's tokenizer, opened with the first text, for several threads; ``truncation`` counts what was cut."""

    def __init__(self, bundle: Bundle, lock: RLock) -> None:
        self.truncation = Truncation()
        self._bundle, self._lock = bundle, lock  # the tokenizer keeps the length that it cuts at
        self._encoder: TextEncoder | None = None
        self._tries: dict[tuple[str, ...], Trie] = {}

    def encoder(self) -> TextEncoder:
        """The tokenizer itself."""
        with self._lock:
            self._encoder = self._encoder or self._bundle.encoder()
            return self._encoder

    def tokens(
        self, texts: Sequence[Text], max_length: int, answers: int = 1, *, kind: TaskType | None = None
    ) -> TokenBatch:
        """Tokenize texts for a kind of task, with so many ``answers`` each; None cuts at the maximal length."""
        with self._lock:
            encoder = self.encoder()
            batch = encoder.encode(texts, max_length) if kind is None else tokenized(encoder, texts, max_length, kind)
            self.truncation.rows += batch.truncated * answers
            if batch.per_text:
                self.truncation.windows = self.truncation.windows.and_of(Spread.of(batch.per_text), answers)
        return batch

    def leading(self, entry: TaskEntry) -> list[int]:
        """The tokens of what stands before the first column in a task's source, special ones too."""
        literal = "" if entry.source is None else pattern(entry.source).parts[0].literal
        if not literal:  # special ones alone are too few to save a run, and need no tokenizer, which takes memory
            return []
        with self._lock:
            ids: list[int] = self.encoder().encode([Text(literal)], entry.max_length).inputs["input_ids"][0].tolist()
        return ids

    def trie(self, entry: TaskEntry) -> Trie:
        """A task's label words, which its decoder scores."""
        words, decoder = entry.targets or entry.labels or (), self._bundle.architecture.decoder
        assert decoder is not None, "the task has one"
        with self._lock:
            if words not in self._tries:
                self._tries[words] = trie_of(words, self.encoder(), decoder)
            return self._tries[words]

    def count(self, texts: Sequence[str], entry: TaskEntry) -> int:
        """How many tokens a task reads, its source's too: of cut texts as far as they are, of others in all windows."""
        with self._lock:
            batch = tokenized(self.encoder(), texts_of(texts, entry.source), entry.max_length, entry.task_kind)
        return int(batch.inputs["attention_mask"].sum())


def tokenized(encoder: TextEncoder, texts: Sequence[Text], max_length: int, kind: TaskType) -> TokenBatch:
    """Their tokens, cut at the maximal length or in windows."""
    try:
        return kind.tokens(encoder, texts, max_length)
    except DataError as error:
        raise UnreadableRow(str(error)) from error


def check_rows(mask: NDArray[np.generic]) -> None:
    """See that each row has a token: attention over nothing has no answer."""
    empty = np.flatnonzero(~(mask != 0).any(axis=1))
    if empty.size:
        raise DataError(f"row {empty[0]} of the batch is masked throughout; every row needs at least one token.")


def pad_together(batches: Sequence[Inputs], pad_token_id: int) -> dict[str, NDArray[np.int64]]:
    """The rows of several padded batches in one, [all rows, longest]."""
    longest = max(batch["input_ids"].shape[1] for batch in batches)

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        fill = pad_token_id if name == "input_ids" else 0
        return np.pad(values, ((0, 0), (0, longest - values.shape[1])), constant_values=fill)

    return {name: np.concatenate([padded(name, batch[name]) for batch in batches]) for name in batches[0]}

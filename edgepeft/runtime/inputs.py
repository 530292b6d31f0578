"""A batch of token ids: what a model reads, what is wrong with one that it cannot read, and the passes it is run in.

A pass has rows of like length together, about a thousand real tokens.  The graph is packed, so a pass loses nothing to
its neighbours; what it gains is that activations stay in cache between operators, that short rows pay no attention
over a long row's padding, and that the arena's size follows the pass instead of the batch.

A graph packs the real tokens of a batch row by row, a prompt's before each row's own; tasks that answer for each token
have rows [batch, length, ...].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import BundleError, DataError
from edgepeft.data.columns import FIRST, SECOND, SENTENCES, text_columns
from edgepeft.data.pattern import UnreadableRow, pattern
from edgepeft.data.row_grouping import Spread
from edgepeft.tasks.base import TaskType

if TYPE_CHECKING:
    from edgepeft.backbones.trie import Trie

T = TypeVar("T")
Readable = str | tuple[str, str | None] | Mapping[str, Any]  # a text, a pair (a ``Text`` is one), or a row's columns
Inputs = Mapping[str, NDArray[np.int64]]  # input_ids, attention_mask and perhaps token_type_ids, each [batch, length]
_INT64 = np.dtype(np.int64)
_PLAIN = f"{{{FIRST}}}"  # what a task reads of columns that is not posed as text
# roberta-base, 32 rows of 128, 2 cores with 1 MB of L2 each: 3.93 s in one pass, 3.71 s by 2048, 3.62 s by 1024,
# 3.55 s by 512; smaller passes pay more for each operator's start where rows are short.
PASS_TOKENS = 1024


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


def read_for_kind(kind: TaskType, texts: object, source: str | None = None) -> ReadRows:
    """Read rows as callers give them: as ``texts_of`` does, or as the kind of task asks."""
    given = as_list(texts)
    if not kind.several_texts:
        return ReadRows(given, texts_of(given, source))
    found = [kind.token_rows(one, f"row {row}") for row, one in enumerate(given)]
    return ReadRows(given, [Text(*text) for of_row in found for text in of_row], [*map(len, found)])


def is_frame(given: Any) -> bool:
    """Whether it is a table of pandas or polars."""
    return hasattr(given, "columns") and (hasattr(given, "to_dicts") or hasattr(given, "iterrows"))


def as_list(texts: object) -> list[Any]:
    """Put texts as callers give them in a list; one alone is a list of one, a DataFrame its rows, and so is a row of
    it, which pandas has as a Series."""
    if isinstance(texts, (str, Mapping)):
        return [texts]
    if not isinstance(texts, list) and is_frame(texts):
        from edgepeft.data.readers import Records

        return [row for _, row in Records(texts).read(None)]
    series: Any = texts
    if hasattr(series, "iloc") and len({*(names := [*series.keys()])}) == len(names):  # else no row: a column's index
        row = series.to_dict()
        if FIRST in row or text_columns(row):
            from edgepeft.data.readers import is_missing

            return [{name: None if is_missing(cell) else cell for name, cell in row.items()}]
    return list(texts) if isinstance(texts, Iterable) else [texts]


def texts_of(texts: object, source: str | None = None) -> list[Text]:
    """Read texts as callers give them; one text is a list of one, and the second of a pair may be None.

    With ``source``, a task's pattern, each is what the row's columns make of it; a text alone is the one column.
    """
    return [
        Text(one) if source is None and type(one) is str else _text(one, source, f"row {row}")
        for row, one in enumerate(as_list(texts))
    ]


def _text(one: object, source: str | None, where: str) -> Text:
    if isinstance(one, Mapping) and source is not None:
        return Text(pattern(source).filled(one, where))
    first, second = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, None)
    if isinstance(one, Mapping):
        one = _by_usual_names(one, where)
        first, second = pattern(_PLAIN).filled(one, where), one.get(SECOND)
    if not isinstance(first, str) or not isinstance(second, str | None):
        raise DataError(f"{where}: a text, or a pair of texts (first, second), is needed; found {one!r:.60}.")
    if source is None:
        return Text(first, second)
    reads = pattern(source)
    names = reads.fields if second is None and len(reads.fields) == 1 else SENTENCES.names
    given = zip(names, (first, second), strict=False)
    return Text(reads.filled({name: value for name, value in given if value is not None}, where))


def _by_usual_names(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Call a row's text, or pair, as tasks do: its columns may have the names that a file's rows have."""
    if FIRST in row:
        return row
    if len(texts := text_columns(row)) != 1:
        several = f"; {', '.join(' and '.join(names) for names in texts)} may each be the text" if texts else ""
        raise UnreadableRow(
            f"{where}: no column {FIRST}{several}. Found columns: {', '.join(map(str, row)) or 'none'}. Call the text "
            f"{FIRST}, and the second one of a pair {SECOND}."
        )
    return {**row, **{usual: row[name] for usual, name in zip((FIRST, SECOND), texts[0], strict=False)}}


class Tokenizing:
    """A bundle's tokenizer, opened with the first text, for several threads; ``truncation`` counts what was cut."""

    def __init__(self, bundle: Bundle, lock: RLock) -> None:
        self.truncation = Truncation()
        self._bundle, self._lock = bundle, lock  # the tokenizer keeps the length that it cuts at
        self._encoder: TextEncoder | None = None
        self._tries: dict[tuple[str, ...], Trie] = {}

    def encoder(self) -> TextEncoder:
        """Open the tokenizer, once."""
        with self._lock:
            self._encoder = self._encoder or self._bundle.encoder()
            return self._encoder

    def tokens(self, texts: Sequence[Text], max_length: int, kind: TaskType, answers: int = 1) -> TokenBatch:
        """Tokenize texts for a kind of task, with so many ``answers`` each."""
        with self._lock:
            batch = tokenize(self.encoder(), texts, max_length, kind)
            self.truncation.rows += batch.truncated * answers
            if batch.per_text:
                self.truncation.windows = self.truncation.windows.and_of(Spread.of(batch.per_text), answers)
        return batch

    def read_and_tokenize(self, texts: object, max_length: int, source: str | None = None) -> tuple[list[Text], Inputs]:
        """Read texts of which each is one row of tokens, cut at the maximal length, and tokenize them."""
        read = texts_of(texts, source)
        with self._lock:
            batch = self.encoder().encode(read, max_length)
            self.truncation.rows += batch.truncated
        check_rows(batch.inputs["attention_mask"])
        return read, batch.inputs

    def leading(self, entry: TaskEntry) -> list[int]:
        """Tokenize what stands before the first column in a task's source, with special tokens."""
        literal = "" if entry.source is None else pattern(entry.source).parts[0].literal
        if not literal:  # special ones alone are too few to save a run, and need no tokenizer, which takes memory
            return []
        with self._lock:
            return self.encoder().encode([Text(literal)], entry.max_length).inputs["input_ids"][0].tolist()

    def trie(self, entry: TaskEntry) -> Trie:
        """Make the trie of a task's label words, which its decoder scores."""
        from edgepeft.backbones.trie import trie_of

        words, decoder = entry.targets or entry.labels or (), self._bundle.architecture.decoder
        assert decoder is not None, "the task has one"
        with self._lock:
            if words not in self._tries:
                self._tries[words] = trie_of(words, self.encoder(), decoder)
            return self._tries[words]

    def count(self, texts: Sequence[str], entry: TaskEntry) -> int:
        """Count the tokens that a task reads, its source's too: of cut texts what is left, of others all windows'."""
        with self._lock:
            batch = tokenize(self.encoder(), texts_of(texts, entry.source), entry.max_length, entry.task_kind)
        return int(batch.inputs["attention_mask"].sum())


def tokenize(encoder: TextEncoder, texts: Sequence[Text], max_length: int, kind: TaskType) -> TokenBatch:
    """Tokenize texts, cut at the maximal length or in windows."""
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
    """Join the rows of several padded batches, [all rows, longest]."""
    longest = max(batch["input_ids"].shape[1] for batch in batches)

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        fill = pad_token_id if name == "input_ids" else 0
        return np.pad(values, ((0, 0), (0, longest - values.shape[1])), constant_values=fill)

    return {name: np.concatenate([padded(name, batch[name]) for batch in batches]) for name in batches[0]}


def passes(inputs: Inputs, tokens: int = PASS_TOKENS, prompt: int = 0) -> Iterator[tuple[NDArray[np.intp], Inputs]]:
    """Yield the rows of each pass and their inputs [rows, longest]; a single pass keeps the batch as it is.

    ``inputs`` holds attention_mask and its like, all [batch, length]; ``prompt`` counts the tokens that the
    graph puts in front of each row.  Columns are dropped at the end only: padding on the left may carry position.
    """
    mask = inputs["attention_mask"] != 0
    if not len(mask):
        return
    counts = mask.sum(1) + prompt
    n_passes = min(max(1, round(counts.sum() / tokens)), len(counts))
    if n_passes <= 1:
        yield np.arange(len(counts)), inputs
        return
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]  # real tokens in shorter rows
    cuts = np.searchsorted(before, counts.sum() * np.arange(1, n_passes) / n_passes)
    for rows in np.split(order, cuts):
        if rows.size:
            used = int(np.flatnonzero(mask[rows].any(0))[-1]) + 1
            yield rows, {name: values[rows, :used] for name, values in inputs.items()}


def unpadded_row(inputs: Inputs) -> Inputs | None:
    """Cut the padding off the end of a batch of one row; None for other batches, or padding elsewhere."""
    mask = inputs["attention_mask"]
    if len(mask) != 1:
        return None
    used = int(np.count_nonzero(mask))
    if used == mask.shape[1]:
        return inputs
    return {name: values[:, :used] for name, values in inputs.items()} if mask[0, :used].all() else None


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield consecutive groups of at most ``size``, in constant memory."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def unpack_tokens(values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """Unpack [tokens, ...] to [batch, length, ...], 0 where ``mask`` has no token; a prompt's are left out."""
    real = mask != 0
    counts = real.sum(1)
    prompt, odd = divmod(len(values) - counts.sum(), max(1, len(mask)))
    if prompt < 0 or odd:
        raise BundleError(f"the model gives logits of {len(values)} tokens for {counts.sum()} in {len(mask)} rows.")
    found = np.zeros((*mask.shape, *values.shape[1:]), values.dtype)
    if prompt:
        starts = np.cumsum(counts + prompt) - counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        values = values[np.repeat(starts, counts) + within]
    found[real] = values
    return found


def pack_tokens(values: NDArray[Any], mask: NDArray[Any], prompt: int, fill: float) -> NDArray[Any]:
    """Pack [batch, length, ...] to [tokens, ...], with ``fill`` at a prompt's tokens."""
    real = np.pad(mask != 0, ((0, 0), (prompt, 0)), constant_values=True)
    widths = [(0, 0), (prompt, 0)] + [(0, 0)] * (values.ndim - 2)
    return np.pad(values, widths, constant_values=fill)[real]


def pad_to(shape: tuple[int, ...], found: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pad ``found`` with 0 to that shape, where it has fewer tokens."""
    if found.shape == shape:
        return found
    into = np.zeros(shape, np.float32)
    write_rows(into, slice(None), found)
    return into


def write_rows(into: NDArray[Any], rows: Any, part: NDArray[Any]) -> None:
    """Write logits of some rows, which may be of fewer tokens than ``into`` has."""
    if part.ndim != into.ndim:
        due, found = (("of each token" if each.ndim > 2 else "of each row") for each in (into, part))
        raise BundleError(f"the task's kind needs logits {due}, and its graph gives them {found}.")
    if part.ndim == 2:
        into[rows] = part
    else:
        into[rows, : part.shape[1]] = part

"""Keys and values of texts that are written together, which a lowered graph extends where they lie (``in_place``).

Buffers have room for more tokens than there are.  A step binds them once, as what it reads and what it gives, and again
only when texts join, leave or outgrow them.

Letters: N texts, S padded length of prompts, k heads of keys, e a head's width, C places of a buffer, v vocabulary.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex
from edgepeft.backbones.text import IDS, LOGITS, PAST, PRESENT, caches
from edgepeft.backbones.tokens import pad_rows
from edgepeft.graph.in_place import tables
from edgepeft.graph.names import LAST, PLACE
from edgepeft.runtime.session_pool import BoundSession

# Rows that run, and how many tokens each has -> the session that runs them.
Bind = Callable[[range, int], BoundSession]

_ROOM = 64  # places that are added at once: a copy of 64 tokens' keys takes a tenth of a step
# Tokens of a prompt that are read at once: attention has a number for each head, token of these and place (9 MB for
# 256 tokens of SmolLM2 at 1,024 places).  ONNX Runtime reads several tokens behind others of one text at a time.
AT_ONCE = 256
_PADDING = 8  # tokens of padding that take as long as one more run


class Beginning(NamedTuple):
    """Tokens that texts may begin with, and their keys and values, [k, n, e] of each layer by turns."""

    tokens: tuple[int, ...] = ()
    values: tuple[NDArray[np.float32], ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(each.nbytes for each in self.values)

    def shared(self, ids: Sequence[int]) -> int:
        """How many leading tokens need not run: not the text's last one, and none where a run of its own costs more."""
        pairs = enumerate(zip(self.tokens, ids[:-1], strict=False))
        n = next((i for i, (own, other) in pairs if own != other), min(len(self.tokens), len(ids) - 1))
        return n if n > _PADDING else 0


class Beginnings:
    """The beginnings of tasks' texts, their instructions, each computed once; several threads may use them.

    A text starts from as many of these tokens as are its own too, so it does not matter where a tokenizer joins the
    instruction's end to what follows.  The least recently used are let go where memory is short.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Beginning] = OrderedDict()
        self._lock = RLock()

    @property
    def n_bytes(self) -> int:
        """Bytes of all that are kept."""
        with self._lock:
            return sum(each.n_bytes for each in self._kept.values())

    def of(self, task: str) -> Beginning | None:
        """A task's, if it is kept."""
        with self._lock:
            if task in self._kept:
                self._kept.move_to_end(task)
            return self._kept.get(task)

    def keep(self, task: str, found: Beginning, most: int) -> Beginning:
        """Keep a task's, which has at most ``most`` bytes; others are let go until all together have no more."""
        with self._lock:
            self.shrink(most - found.n_bytes)
            self._kept[task] = found
        return found

    def shrink(self, most: int) -> None:
        """Let the least recently used go until the others have ``most`` bytes."""
        with self._lock:
            while self._kept and self.n_bytes > most:
                self._kept.popitem(last=False)


class KvCache:
    """Keys and values of texts that begin together, for one thread; ``heads``: how many of keys, and their width."""

    def __init__(
        self, layers: int, heads: tuple[int, int], vocabulary: int, frequencies: Sequence[NDArray[np.float32]]
    ) -> None:
        self._layers, self._heads, self._vocabulary = range(layers), heads, vocabulary
        self._frequencies = frequencies
        self._buffers: list[NDArray[np.float32]] = []  # [N, k, C, e], each layer's keys and values by turns
        self._lengths = np.empty(0, np.int32)  # tokens of each text that have keys
        self._run: _Run | None = None

    def begin(
        self, bind: Bind, prompts: Sequence[Sequence[int]], beginnings: Sequence[Beginning] = ()
    ) -> NDArray[np.float32]:
        """Logits [N, v] of what follows each prompt, none of which is empty.

        A prompt starts from what it shares with its one of the ``beginnings`` [N].  It then runs alone: ONNX Runtime's
        operator takes several tokens behind others of one text only.
        """
        self._lengths = np.array([len(ids) for ids in prompts], np.int32)
        k, e = self._heads
        shape = (len(prompts), k, places(int(self._lengths.max()) + 1), e)
        self._buffers = [np.zeros(shape, np.float32) for _ in self._layers for _ in range(2)]
        known = np.zeros(len(prompts), np.int32)
        for row, beginning in enumerate(beginnings):
            known[row] = n = beginning.shared(prompts[row])
            for buffer, values in zip(self._buffers, beginning.values, strict=False):
                buffer[row, :, :n] = values[:, :n]
        logits = np.empty((len(prompts), self._vocabulary), np.float32)
        for rows in _alike(self._lengths, known):
            first = int(known[rows.start])
            at_once = self._lengths[rows.start : rows.stop].max() - first <= AT_ONCE
            for part in [rows] if at_once else [range(row, row + 1) for row in rows]:
                logits[part.start : part.stop] = self._read(bind, part, prompts, first)
        return logits

    def _read(self, bind: Bind, rows: range, prompts: Sequence[Sequence[int]], first: int) -> NDArray[np.float32]:
        """Logits of what follows these prompts, but for ``first`` tokens; a longer one is alone, and read in parts."""
        lengths = self._lengths[rows.start : rows.stop]
        for begin in range(first, int(lengths.max()), AT_ONCE):
            ids = pad_rows([list(prompts[row][begin : begin + AT_ONCE]) for row in rows], 0)
            (n, s), last = ids.shape, np.minimum(lengths, begin + AT_ONCE) - 1
            run = _Run(self, bind(rows, s), rows, ids.reshape(-1), last - begin + s * np.arange(n))
            run.places[:], run.positions[:] = last, np.tile(begin + np.arange(s), n)
            logits = run.logits()
        return logits

    def beginning(self, bind: Bind, tokens: Sequence[int], most: int) -> Beginning | None:
        """Compute the beginning of these tokens; empty if too few to save anything, None beyond ``most`` bytes."""
        if len(self._layers) * 2 * math.prod(self._heads) * len(tokens) * np.dtype(np.float32).itemsize > most:
            return None
        if len(tokens) <= _PADDING:
            return Beginning()
        self.begin(bind, [tokens])
        return Beginning(tuple(tokens), tuple(each[0, :, : len(tokens)].copy() for each in self._buffers))

    def step(self, bind: Bind, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [N, v] of what follows ``ids`` [N], one token of each text."""
        n = len(self._lengths)
        if int(self._lengths.max()) == self._buffers[0].shape[2]:
            for i, each in enumerate(self._buffers):
                self._buffers[i] = np.concatenate([each, np.zeros_like(each[:, :, :_ROOM])], axis=2)
            self._run = None
        if self._run is None:
            self._run = _Run(self, bind(range(n), 1), range(n), np.empty(n, np.int64), np.arange(n))
        self._run.ids[:], self._run.places[:], self._run.positions[:] = ids, self._lengths, self._lengths
        logits = self._run.logits()
        self._lengths += 1
        return logits

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Keep these, in their order; one may be taken several times."""
        if len(rows) == len(self._lengths) and np.array_equal(rows, np.arange(len(rows))):
            return
        for i, each in enumerate(self._buffers):
            self._buffers[i] = each[rows]
        self._lengths, self._run = self._lengths[rows], None

    def join(self, other: KvCache, order: Sequence[int]) -> None:
        """Take over another's texts; ``order`` numbers these and then those, as they shall stand."""
        both, at = (self, other), np.argsort(order)
        lengths = np.concatenate([each._lengths for each in both])
        k, e = self._heads
        shape = (len(lengths), k, places(int(lengths.max()) + 1), e)
        where = np.split(at, [len(self._lengths)])
        for i, pair in enumerate(zip(*(each._buffers for each in both), strict=True)):
            self._buffers[i] = np.zeros(shape, np.float32)
            for rows, buffer in zip(where, pair, strict=True):
                length = min(shape[2], buffer.shape[2])
                self._buffers[i][rows, :, :length] = buffer[:, :, :length]
        self._lengths, self._run = lengths[order], None


class _Run:
    """A session on a cache's rows, and the arrays that it reads and writes."""

    def __init__(
        self, cache: KvCache, bound: BoundSession, rows: range, ids: NDArray[np.int64], last: NDArray[np.int64]
    ) -> None:
        self._bound, self.ids, tokens = bound, ids, len(ids) // len(rows)
        self.places, self.positions = np.empty(len(rows), np.int32), np.empty(len(ids), np.int64)
        self._logits = np.empty((len(rows), cache._vocabulary), np.float32)
        helpers = {
            PackedIndex.POSITION: self.positions,
            PackedIndex.ROW: np.repeat(np.arange(len(rows)), tokens),
            PackedIndex.FIRST_TOKEN: tokens * np.arange(len(rows)),
        }
        given = {IDS: ids, LAST: last, PLACE: self.places}
        given |= {PACKED_INDICES[of]: values for of, values in helpers.items() if PACKED_INDICES[of] in bound.inputs}
        for kind, frequencies in enumerate(cache._frequencies):
            angles = np.arange(cache._buffers[0].shape[2], dtype=np.float32)[:, None] * frequencies
            given |= zip(tables(kind), (np.cos(angles), np.sin(angles)), strict=True)
        read = {name: ort.OrtValue.ortvalue_from_numpy(values) for name, values in given.items()}
        written = {LOGITS: ort.OrtValue.ortvalue_from_numpy(self._logits)}
        pairs = [pair for i in cache._layers for pair in zip(caches(PAST, i), caches(PRESENT, i), strict=True)]
        for (past, present), buffer in zip(pairs, cache._buffers, strict=True):
            read[past] = written[present] = ort.OrtValue.ortvalue_from_numpy(buffer[rows.start : rows.stop])
        bound.bind(read, written)

    def logits(self) -> NDArray[np.float32]:
        self._bound.run()
        return self._logits.copy()


def places(tokens: int) -> int:
    """Places of a buffer for so many tokens."""
    return -(-tokens // _ROOM) * _ROOM


def _alike(lengths: NDArray[np.int32], known: NDArray[np.int32]) -> Iterator[range]:
    """Neighbours that run together, padded to the longest; alone where tokens are known."""
    begin = 0
    for end in range(1, len(lengths) + 1):
        among = lengths[begin : end + 1]
        padded = (among.max() - among).sum() > _PADDING * (len(among) - 1)
        if end == len(lengths) or known[begin : end + 1].any() or padded:
            yield range(begin, end)
            begin = end

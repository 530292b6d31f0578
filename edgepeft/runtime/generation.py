"""Text of a bundle's tasks: the encoder once, then the decoder token by token; rows that are done leave the batch.

A decoder of one stack (``edgepeft.graph.in_place``) reads its prompts itself.

Rows of like length run together, as many as their caches allow.

Letters: R rows, S their padded length, n beams, N = R n texts, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture, Decoder, Role
from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, caches
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import DoesNotFit, Unwritable, UsageError
from edgepeft.device.machine import memory_bytes
from edgepeft.graph.in_place import in_place
from edgepeft.graph.splice import placeholders_in
from edgepeft.runtime.decoding import Decoding, Grammars, Guide, Row, Written, choose
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.kv_cache import AT_ONCE, Beginning, Beginnings, KvCache, places
from edgepeft.runtime.prediction import non_finite_error
from edgepeft.runtime.session import failing_as, return_free_memory
from edgepeft.runtime.session_pool import TaskSession, ort_value

_PASS_TOKENS = 4096  # of a batch, padding counted: the encoder's attention of 8 rows of 512 takes 100 MB
_PASS_TEXTS = 256
_SHARE = 0.5  # of the memory that this process may have, for caches
_OF_BEGINNINGS = 0.25  # of these
_FLOAT_BYTES = 4


class OneStack(NamedTuple):
    """Inputs of a lowered graph besides a session's (``in_place``); a task's prompt stands before each row."""

    frequencies: tuple[NDArray[np.float32], ...]
    prompt: tuple[int, ...]


class TextSession(NamedTuple):
    """The sessions that write a task's text; ``encoder`` is None where the decoder reads the prompt too."""

    encoder: TaskSession | None
    decoder: TaskSession
    stack: OneStack | None = None

    @classmethod
    def of(cls, graphs: Sequence[onnx.ModelProto], opened: Callable[[onnx.ModelProto], TaskSession]) -> TextSession:
        """Open both graphs of a task."""
        encoder, decoder = graphs
        if (lowered := in_place(decoder)) is None:
            return cls(opened(encoder), opened(decoder))
        return cls(None, opened(lowered.model), OneStack(lowered.frequencies, placeholders_in(encoder.graph)))

    @property
    def layers(self) -> int:
        """Layers of the decoder."""
        return sum(value.name.startswith(f"{PAST}.key.") for value in self.decoder.get_inputs())

    @property
    def structure(self) -> bytes | None:
        """Equal for tasks that can be written together; None where no other task can."""
        structures = [each.structure for each in (self.encoder, self.decoder) if each is not None]
        return None if None in structures else b"".join(filter(None, structures))

    def runs_on(self, session: object) -> bool:
        """Whether that is one of its sessions."""
        return any(each.runs_on(session) for each in (self.encoder, self.decoder) if each is not None)

    def cache(self) -> KvCache | None:
        """An empty one, where there is one stack."""
        if self.stack is None:
            return None
        given = {value.name: value.shape for value in (*self.decoder.get_inputs(), *self.decoder.get_outputs())}
        _, k, _, e = given[caches(PAST, 0)[0]]
        return KvCache(self.layers, (k, e), given[LOGITS][-1], self.stack.frequencies)

    def tokens(self, ids: Iterable[int]) -> list[int]:
        """A row of one stack: its own after the task's prompt."""
        assert self.stack is not None
        return [*self.stack.prompt, *map(int, ids)]

    def beginning(self, ids: Sequence[int], most: int) -> Beginning | None:
        """Compute what rows share that begin with these tokens; empty of two stacks, None beyond ``most`` bytes."""
        cache = self.cache()
        if cache is None:
            return Beginning()
        with failing_as(f"stops in the decoder, with a text of {len(ids)} tokens"):
            return cache.beginning(lambda *_: self.decoder.bound(), self.tokens(ids), most)


class TextState:
    """A batch between steps: the encoder's keys and values of each row, the decoder's own of each text.

    Of one stack, rows start from what they share with ``beginning``.
    """

    def __init__(self, session: TextSession, inputs: Inputs, beginning: Beginning | None = None) -> None:
        self._beginning = beginning or Beginning()
        self._decoder, layers = session.decoder, session.layers
        self._cache, self._unread = session.cache(), None
        if session.encoder is None:
            pairs = zip(inputs["input_ids"], inputs["attention_mask"] != 0, strict=True)
            self._unread = [session.tokens(ids[real]) for ids, real in pairs]
            return
        self._known = [name for i in range(layers) for name in caches(PAST, i)]
        self._made = [name for i in range(layers) for name in caches(PRESENT, i)]
        cross = [CROSS_BIAS, *(name for i in range(layers) for name in caches(CROSS, i))]
        tokens = {value.name: ort_value(inputs[value.name]) for value in session.encoder.get_inputs()}
        with failing_as(f"stops in the encoder, with rows of {inputs['input_ids'].shape[1]} tokens"):
            given = session.encoder.run_values(cross, tokens)
        self._cross = dict(zip(cross, given, strict=True))
        taken = next(value.shape[0] for value in session.decoder.get_inputs() if value.name == CROSS_BIAS)
        self._per_text, self._beams = taken == "texts", 1
        rows, (_, heads, _, width) = len(inputs["input_ids"]), self._cross[cross[1]].shape()
        self._past = [ort_value(np.zeros((rows, heads, 0, width), np.float32))] * len(self._known)

    def step(self, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [N, v] of the tokens that follow ``ids`` [N]; ``order`` [N]: which text of the last step each was."""
        if self._cache is not None:
            return self._step(self._cache, ids, order)
        tokens, rows = {IDS: ort_value(ids), ORDER: ort_value(order)}, self._cross[CROSS_BIAS].shape()[0]
        if self._per_text and len(ids) > rows:  # beams begin
            self._beams = len(ids) // rows
            self._cross = {n: ort_value(np.repeat(v.numpy(), self._beams, 0)) for n, v in self._cross.items()}
        given = {**tokens, **self._cross, **dict(zip(self._known, self._past, strict=True))}
        with failing_as(f"stops in the decoder, with {len(ids)} texts"):
            logits, *self._past = self._decoder.run_values([LOGITS, *self._made], given)
        return logits.numpy()

    def _step(self, cache: KvCache, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        with failing_as(f"stops in the decoder, with {len(ids)} texts"):
            if self._unread is None:
                cache.take(order)
                return cache.step(lambda *_: self._decoder.bound(), ids)
            prompts, self._unread = self._unread, None  # whose last tokens are the first to go on from
            prompts = [[*row[:-1], last] for row, last in zip(prompts, ids.tolist(), strict=True)]
            return cache.begin(lambda *_: self._decoder.bound(), prompts, [self._beginning] * len(prompts))

    def keep(self, rows: list[int]) -> None:
        """Let the others' keys and values of the encoder go."""
        if self._cache is not None:  # the next step's order says which stay
            return
        kept = [row * self._beams + i for row in rows for i in range(self._beams)]
        self._cross = {name: ort_value(value.numpy()[kept]) for name, value in self._cross.items()}


class Generator:
    """Writes the texts of a bundle's tasks, by sessions that ``open_model`` opens when they are needed.

    ``leading`` gives the tokens that all texts of a task begin with, but perhaps for the last ones; ``sessions`` keeps
    what is open.
    """

    def __init__(
        self,
        bundle: Bundle,
        open_model: Callable[[onnx.ModelProto], TaskSession],
        leading: Callable[[TaskEntry], Sequence[int]] = lambda _: (),
        sessions: dict[str | None, TextSession] | None = None,
    ) -> None:
        self.bundle, self._open, self.leading = bundle, open_model, leading
        self.beginnings = Beginnings()
        self.sessions = {} if sessions is None else sessions

    def session(self, task: str | None) -> TextSession:
        """A task's sessions, or those of the bare backbone for None."""
        session = self.sessions.get(task)  # another thread may close it at any time
        if session is None:
            session = self.sessions[task] = TextSession.of(self.bundle.text_graphs_of(task), self._open)
            return_free_memory()  # of the graphs, which are gone by now
        return session

    def beginning(self, task: str | None, session: TextSession, taken: int) -> Beginning:
        """Find what a task's texts begin with; empty for a session not its own, or where ``taken`` leaves no room."""
        if task is None or self.sessions.get(task) is not session:
            return Beginning()
        if (kept := self.beginnings.of(task)) is not None:
            return kept
        allowed = int(_SHARE * memory_bytes())
        most = min(int(_OF_BEGINNINGS * allowed), allowed - taken)
        found = session.beginning(self.leading(self.bundle.entry(task)), most)
        return Beginning() if found is None else self.beginnings.keep(task, found, most)

    def write(self, task: str | None, inputs: Inputs, decoding: Decoding) -> list[Written]:
        """Write what follows each row of ``inputs``, token ids and masks [rows, length]."""
        architecture = self.bundle.architecture
        if 2 * decoding.beams > architecture.vocab_size:
            raise UsageError(f"{decoding.beams} beams are too many for {architecture.vocab_size} tokens; give fewer.")
        return self.written(task, lambda: self.session(task), inputs, decoding, self.bundle.prompt_length(task))

    def written(
        self,
        task: str | None,
        session: Callable[[], TextSession],
        inputs: Inputs,
        decoding: Decoding,
        prompt_length: int,
    ) -> list[Written]:
        """Write by any session with a prompt of that length; it is opened once the rows are known to fit."""
        lengths = (inputs["attention_mask"] != 0).sum(1) + prompt_length
        parts = [*self.parts(lengths, decoding)]  # before anything runs: what does not fit is refused
        opened, written = session(), dict[int, Written]()
        for rows in parts:
            used = int(np.flatnonzero((inputs["attention_mask"][rows] != 0).any(0))[-1]) + 1
            part = {name: values[rows, :used] for name, values in inputs.items()}
            written.update(zip(rows.tolist(), self._write(task, opened, part, decoding, prompt_length), strict=True))
        return [written[row] for row in range(len(lengths))]

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars of the backbone's tokenizer."""
        return Grammars.of(self.bundle.folder, self.bundle.architecture)

    def guide(self, task: str | None, decoding: Decoding, schema: Mapping[str, Any] | None = None) -> Guide | None:
        """Make what leads a text of a task by this JSON schema, or by its own; None where there is none."""
        own = None if task is None else self.bundle.entry(task).json_schema
        schema = own if schema is None else schema
        if schema is None or not decoding.ends:  # without ends only time matters
            return None
        if decoding.beams > 1:
            raise UsageError(
                f"{decoding.beams} beams: a text in a JSON schema, as those of task {task} are, is written with one."
            )
        return self.grammars.guide(schema)

    def _write(
        self, task: str | None, session: TextSession, inputs: Inputs, decoding: Decoding, prompt_length: int
    ) -> list[Written]:
        decoder, end = self.decoder, decoding.end(self.decoder.end_token_id)
        lengths = (inputs["attention_mask"] != 0).sum(1) + prompt_length
        taken = len(lengths) * self.row_bytes(int(lengths.max()), decoding)
        state = TextState(session, inputs, self.beginning(task, session, taken))
        ids = decoder.starts(inputs["input_ids"], inputs["attention_mask"])
        allowed = [self.most(length, decoding.max_new_tokens) for length in lengths.tolist()]
        guides = (self.guide(task, decoding) for _ in allowed)
        pairs = zip(inputs["input_ids"], inputs["attention_mask"] != 0, strict=True)
        read = (decoder.read_before(of_row[real]) for of_row, real in pairs)
        every = [Row(*each) for each in zip(ids.tolist(), allowed, guides, read, strict=True)]
        rows = every
        order = np.arange(len(rows))
        while rows:
            logits = state.step(ids, order)
            if not np.isfinite(logits).all():
                raise non_finite_error(task)
            for row, of_row in zip(rows, logits, strict=False):  # rows of several beams have no guide
                if row.guide is not None:
                    row.guide.restrict(of_row)
            going, ids, order = choose(rows, logits, decoding, end)
            if len(going) < len(rows):
                rows = [rows[i] for i in going]
                state.keep(going)
        return [row.best(end) for row in every]

    def parts(self, lengths: NDArray[np.intp], decoding: Decoding) -> Iterator[NDArray[np.intp]]:
        """Rows that run together."""
        if not len(lengths):
            return
        order, begin = np.argsort(lengths, kind="stable"), 0
        self.check_row(int(lengths.max()), decoding)
        self.most(int(lengths.max()), decoding.max_new_tokens)
        for end in range(1, len(order) + 1):
            rows, longest = end - begin, int(lengths[order[end - 1]])
            if rows > 1 and not self.fit(rows, longest, decoding):
                yield order[begin : end - 1]
                begin = end - 1
        yield order[begin:]

    def row_bytes(self, length: int, decoding: Decoding) -> int:
        """Bytes of a row, by the function of that name."""
        return row_bytes(self.bundle.architecture, length, decoding)

    def fit(self, rows: int, longest: int, decoding: Decoding, more: int = 0) -> bool:
        """Whether so many rows, the longest of so many tokens, may run together, each with so many bytes ``more``."""
        kept = self.beginnings.n_bytes
        return rows <= rows_at_once(self.bundle, rows, longest, decoding, memory_bytes(), more=more, kept=kept)

    def check_row(self, length: int, decoding: Decoding) -> None:
        """See that a row of so many tokens may run alone, for which what other texts begin with is let go."""
        needed, allowed = self.row_bytes(length, decoding), int(_SHARE * memory_bytes())
        self.beginnings.shrink(allowed - needed)
        if needed > allowed:
            raise DoesNotFit(
                f"a text of {length} tokens with {decoding.beams} beams of {decoding.max_new_tokens} new tokens takes "
                f"{needed >> 20} MB of keys and values; {allowed >> 20} MB are allowed, half of the memory. Give fewer "
                "beams or a smaller max_new_tokens."
            )

    def most(self, length: int, asked: int) -> int:
        """How many tokens a row of so many may get: where a text goes on with its prompt, both share the positions."""
        if not self.bundle.architecture.decoder_only:
            return asked
        room = self.bundle.architecture.max_length - length
        if room < 1:
            raise Unwritable(
                f"a text of {length} tokens leaves nothing of the {room + length} positions of this backbone to write "
                "at; give a shorter one."
            )
        return min(asked, room)

    @property
    def decoder(self) -> Decoder:
        """The architecture's decoder."""
        decoder = self.bundle.architecture.decoder
        if decoder is None:
            raise UsageError(f"{self.bundle.folder} has no decoder, so no task of it writes text; ask it with predict.")
        return decoder


def row_bytes(architecture: Architecture, length: int, decoding: Decoding) -> int:
    """At most alive at once for a row: of the encoder's keys and values two copies, of its own three, or, where one
    stack reads and writes, the places of a buffer, twice where texts join, and what attention has of them for each head
    and token that is read; logits.
    """
    sites = architecture.sites_of(Role.CROSS_KEY, Role.CROSS_VALUE) or architecture.sites_of(Role.KEY, Role.VALUE)
    widths = sum(site.out_features for site in sites)
    tokens, attended = 2 * length + 3 * decoding.beams * decoding.max_new_tokens, 0
    if architecture.decoder_only:
        longest = places(length + decoding.max_new_tokens)
        tokens = max(tokens, 2 * decoding.beams * longest)
        attended = architecture.n_heads * min(places(length), AT_ONCE) * longest
    return _FLOAT_BYTES * (widths * tokens + attended + 4 * decoding.beams * architecture.vocab_size)


def rows_at_once(
    bundle: Bundle, rows: int, longest: int, decoding: Decoding, memory: int, *, more: int = 0, kept: int = 0
) -> int:
    """How many of ``rows``, the longest of so many tokens, run together where a process may have so much memory.

    Each takes so many bytes ``more``; so many are ``kept`` of what texts begin with.
    """
    of_memory = (int(_SHARE * memory) - kept) // (row_bytes(bundle.architecture, longest, decoding) + more)
    return min(rows, max(1, min(of_memory, _PASS_TOKENS // max(1, longest), _PASS_TEXTS // decoding.beams)))

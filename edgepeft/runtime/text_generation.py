"""Texts that are written together, a token a step: rows join, go on, and leave.

Rows may be of different tasks of one structure and at different steps; each step runs the backbone once for all.
Cached keys and values end together, so a row that joins has the others' before its first token, hidden
(``edgepeft.graph.in_place``).  Where all are of one task and at one step, its own decoder runs, as if there
were no others.  A decoder of one stack keeps its texts in a ``KvCache``, where rows of any lengths share a step.

Letters: R rows, S their padded length, L tokens of the longest, h heads, e a head's width, v vocabulary.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, caches
from edgepeft.backbones.tokens import Text, pad_rows
from edgepeft.common.errors import EdgepeftError, Unwritable, UsageError
from edgepeft.graph.in_place import HIDDEN
from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS
from edgepeft.runtime.decoding import Decoding, Row, Written, choose
from edgepeft.runtime.kv_cache import KvCache
from edgepeft.runtime.mixed import MAX_TASKS, Values
from edgepeft.runtime.prediction import TextAnswer, non_finite_error
from edgepeft.runtime.session import failing_as
from edgepeft.runtime.session_pool import BoundSession, ort_value

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

_LOWEST = np.finfo(np.float32).min


@dataclass(eq=False)
class Draft:
    """A row that is being written; ``text`` is what it was asked, ``ids`` its tokens."""

    task: str
    text: Text
    ids: NDArray[np.int64]
    row: Row
    end: int
    done: bool = False
    error: EdgepeftError | None = None  # why there will be no answer
    said: str = ""  # in pieces, so far

    @property
    def cached(self) -> int:
        """How many of its tokens have keys and values."""
        return len(self.row.open[0].tokens) - 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens that were written so far."""
        return self.written.tokens if self.done and not self.error else self.row.open[0].tokens[1:]

    @property
    def written(self) -> Written:
        """The text in the end."""
        return self.row.best(self.end)


class TextBatch:
    """Rows that are written together, greedily; one thread at a time."""

    def __init__(self, runtime: Runtime, decoding: Decoding) -> None:
        if decoding.beams > 1:
            raise UsageError(f"{decoding.beams} beams: texts are written together, or as a stream, with one.")
        self._runtime, self._generator, self.decoding = runtime, runtime.generator, decoding
        self._slots, self._encoder = runtime.mixer.text, runtime._tokenizing.encoder()
        self._end = decoding.end(self._generator.decoder.end_token_id)
        self._waiting: deque[Draft] = deque()
        self._going: list[Draft] = []  # in the order of their tasks
        self._place: dict[str, int] = {}  # of a task among the others
        self._layers = range(0)
        self._cache: KvCache | None = None  # of one stack; of two, what follows
        self._ready: NDArray[np.float32] | None = None  # logits [R, v] that prompts have given
        self._cross: Values = {}  # [R, h, S, e] of each layer, and [R, 1, 1, S]
        self._past: list[ort.OrtValue] = []  # [rows of the step before, h, L, e] of each layer
        self._order = np.empty(0, np.int64)  # which of the step before each row is; a new one any

    def __len__(self) -> int:
        return len(self._waiting) + len(self._going)

    def add(
        self, task: str, texts: object, most: int | None = None, schema: Mapping[str, Any] | None = None
    ) -> list[Draft]:
        """Let a task's texts join with the next steps, in their order and as memory allows.

        Those of another structure join when all others are done.  Each may have ``most`` tokens, or as many as all, and
        is led by the JSON ``schema``, or by its task's.
        """
        read, inputs = self._runtime._read(task, texts)
        mask = inputs["attention_mask"] != 0
        decoder = self._generator.decoder
        starts = decoder.starts(inputs["input_ids"], mask).tolist()
        tokens = [ids[real] for ids, real in zip(inputs["input_ids"], mask, strict=True)]
        begun = (Row(at, most, read=decoder.read_before(ids)) for at, ids in zip(starts, tokens, strict=True))
        drafts = [Draft(task, *each, self._end) for each in zip(read, tokens, begun, strict=True)]
        for draft in drafts:
            length = self._length(draft)
            self._generator.check_row(length, self.decoding)
            draft.row.most = self._generator.most(length, most or self.decoding.max_new_tokens)
            draft.row.guide = self._generator.guide(task, self.decoding, schema)
        self._waiting.extend(drafts)
        return drafts

    def drop(self, drafts: Sequence[Draft]) -> None:
        """Write no more of these."""
        self._waiting = deque(draft for draft in self._waiting if draft not in drafts)
        self._keep([i for i, draft in enumerate(self._going) if draft not in drafts])

    def step(self) -> list[Draft]:
        """Write a token of each row that has joined; those are returned, and the ones that are done have left."""
        new: list[Draft] = []
        while self._waiting and self._may_join(self._waiting[0], [*self._going, *new]):  # in their order
            new.append(self._waiting.popleft())
        if new:
            self._join(new)
        if not (drafts := self._going):
            return []
        logits = self._logits()
        sound = self._sound(logits)
        going: list[int] = []
        if len(sound):
            chosen = choose([drafts[i].row for i in sound], logits[sound], self.decoding, self._end)
            going = sound[chosen.rows].tolist()
        for i, draft in enumerate(drafts):
            draft.done = i not in going
        self._keep(going)
        return drafts

    def _sound(self, logits: NDArray[np.float32]) -> NDArray[np.intp]:
        """The rows that can go on, of whose logits what may not come is -inf; the others have their errors."""
        for draft, of_row in zip(self._going, logits, strict=True):
            if not np.isfinite(of_row).all():
                draft.error = non_finite_error(draft.task)
                continue
            try:
                if draft.row.guide is not None:
                    draft.row.guide.restrict(of_row)
            except Unwritable as error:
                draft.error = error
        return np.flatnonzero([draft.error is None for draft in self._going])

    def piece(self, draft: Draft) -> str:
        """Return what was added to a text since the last call, in whole characters.

        All pieces are the text, but where a tokenizer changes what it has said already.
        """
        text = self._encoder.decode(draft.tokens)
        # Bytes that do not make a character yet are decoded as a replacement.
        known = text if draft.done else text.rstrip("\N{REPLACEMENT CHARACTER}")
        piece = known[len(draft.said) :] if known.startswith(draft.said) else ""
        draft.said += piece
        return piece

    def answer(self, draft: Draft) -> TextAnswer:
        """Return a text once it is done; raise its error if it has one."""
        if draft.error is not None:
            raise draft.error
        return self._runtime._written(draft.task, [draft.text], [draft.written])[0]

    def answers(self, texts: Mapping[str, Sequence[object]]) -> list[TextAnswer]:
        """Each task's answers, in order."""
        drafts = [draft for task, rows in texts.items() for draft in self.add(task, rows)]
        while len(self):
            self.step()
        return [self.answer(draft) for draft in drafts]

    def stream(self, task: str, text: object) -> Generator[str, None, TextAnswer]:
        """Write one text, and yield it as it comes, in whole characters, or none yet; returns the whole answer."""
        (draft,) = self.add(task, [text])
        while not draft.done:
            self.step()
            yield self.piece(draft)
        return self.answer(draft)

    def _length(self, draft: Draft) -> int:
        return len(draft.ids) + self._generator.bundle.prompt_length(draft.task)

    def _may_join(self, draft: Draft, others: list[Draft]) -> bool:
        """Whether it may run with these, which go on or join before it."""
        if not others:
            return True
        longest = max(map(self._length, (draft, *others)))
        tasks, session = {each.task for each in (draft, *others)}, self._generator.session(draft.task)
        of_task = session.decoder.values_bytes if len(tasks) > 1 else 0  # each row then has its own
        if not self._generator.fit(len(others) + 1, longest, self.decoding, of_task) or len(tasks) > MAX_TASKS:
            return False
        alone = len(tasks) == 1 and not self._going  # they begin together: the task's own sessions run
        known = session.structure is not None and session.structure == self._generator.session(others[0].task).structure
        return alone or (known and self._slots.can_mix(draft.task, session))

    def _join(self, new: list[Draft]) -> None:
        """Run the encoder for these rows, and put them among those that go on."""
        for draft in new:
            self._place.setdefault(draft.task, len(self._place))
        new.sort(key=lambda draft: self._place[draft.task])
        together = [*self._going, *new]
        rows = sorted(range(len(together)), key=lambda i: self._place[together[i].task])  # those that go on stay first
        cross: Values = {}
        if (cache := self._generator.session(new[0].task).cache()) is not None:
            self._begin(new, cache, rows)
        else:
            cross = self._encoded(new)
        if self._going and cross:
            length = max(map(self._length, together))
            for name, values in cross.items():
                parts = [_to_length(name, part.numpy(), length) for part in (self._cross[name], values)]
                cross[name] = ort_value(np.concatenate(parts)[rows])
        self._cross = cross
        self._order = np.concatenate([self._order, np.zeros(len(new), np.int64)])[rows]
        self._going = [together[i] for i in rows]

    def _encoded(self, new: list[Draft]) -> Values:
        """Keys, values and what hides padding, of the encoder."""
        first = self._generator.session(new[0].task)
        self._layers = range(first.layers)
        names = [CROSS_BIAS, *(name for i in self._layers for name in caches(CROSS, i))]
        ids = pad_rows([draft.ids.tolist() for draft in new], 0)
        mask = pad_rows([[1] * len(draft.ids) for draft in new], 0)
        inputs = {"input_ids": ort_value(ids), "attention_mask": ort_value(mask)}
        tasks = Counter(draft.task for draft in new)
        assert first.encoder is not None, "of two stacks"
        if len(tasks) == 1:
            with failing_as(f"stops in the encoder, with rows of {ids.shape[1]} tokens"):
                found = first.encoder.run_values(names, inputs)
        else:
            lengths = np.array([self._length(draft) for draft in new])
            slot = np.repeat(np.arange(len(tasks)), [*tasks.values()])
            counts = {ROW_COUNTS: np.bincount(slot), TOKEN_COUNTS: np.bincount(slot, lengths)}
            sessions = {task: self._generator.session(task).encoder for task in tasks}
            of_tasks = [(task, session) for task, session in sessions.items() if session is not None]
            found = self._slots.encoder.run(of_tasks, counts, inputs, names)
        return dict(zip(names, found, strict=True))

    def _logits(self) -> NDArray[np.float32]:
        """[R, v] of the next tokens; the new keys and values are kept."""
        if self._ready is not None:
            found, self._ready = self._ready, None
            return found
        cached = np.array([draft.cached for draft in self._going])
        tasks = Counter(draft.task for draft in self._going)
        ids = np.array([draft.row.open[0].tokens[-1] for draft in self._going], np.int64)
        if self._cache is not None:
            with failing_as(f"stops in the decoder, with {len(cached)} texts"):
                return self._cache.step(partial(self._bound, [draft.task for draft in self._going]), ids)
        session = self._generator.session(next(iter(tasks)))
        made = [name for i in self._layers for name in caches(PRESENT, i)]
        given = {IDS: ort_value(ids), ORDER: ort_value(self._order), **self._cross}
        known = [name for i in self._layers for name in caches(PAST, i)]
        given |= zip(known, self._known(int(cached.max())), strict=True)
        if len(tasks) == 1 and cached.min() == cached.max():
            with failing_as(f"stops in the decoder, with {len(cached)} texts"):
                logits, *self._past = session.decoder.run_values([LOGITS, *made], given)
        else:
            back = np.arange(cached.max(), -1, -1)
            hidden = np.where(back > cached[:, None], _LOWEST, np.float32(0))  # (R, L + 1)
            counts = dict.fromkeys((ROW_COUNTS, TOKEN_COUNTS), np.array([*tasks.values()]))
            of_tasks = [(task, self._generator.session(task).decoder) for task in tasks]
            given[HIDDEN] = ort_value(hidden[:, None, None])
            logits, *self._past = self._slots.decoder.run(of_tasks, counts, given, [LOGITS, *made])
        self._order = np.arange(len(cached))
        return logits.numpy()

    def _begin(self, new: list[Draft], cache: KvCache, order: list[int]) -> None:
        """Read prompts, and go on with the other texts; what both give is ``_ready``."""
        sessions = {draft.task: self._generator.session(draft.task) for draft in new}
        together = [*self._going, *new]
        taken = len(together) * self._generator.row_bytes(max(map(self._length, together)), self.decoding)
        beginnings = {task: self._generator.beginning(task, session, taken) for task, session in sessions.items()}
        prompts = [sessions[draft.task].tokens(draft.ids) for draft in new]
        with failing_as(f"stops in the decoder, with {len(new)} prompts"):
            tasks = [draft.task for draft in new]
            logits = cache.begin(partial(self._bound, tasks), prompts, [beginnings[task] for task in tasks])
        if self._cache is None:
            self._cache, self._ready = cache, logits
        else:
            self._ready = np.concatenate([self._logits(), logits])[order]
            self._cache.join(cache, order)

    def _bound(self, tasks: Sequence[str], rows: range, tokens: int) -> BoundSession:
        """The session that runs rows of these tasks, with so many tokens each."""
        counted = Counter(tasks[row] for row in rows)
        of_tasks = {task: self._generator.session(task).decoder for task in counted}
        first = next(iter(of_tasks.values()))
        if len(of_tasks) == 1 or first.by_row:
            return first.bound([of_tasks[tasks[row]] for row in rows])
        counts = np.array([*counted.values()])
        return self._slots.decoder.bound([*of_tasks.items()], {ROW_COUNTS: counts, TOKEN_COUNTS: tokens * counts})

    def _known(self, longest: int) -> list[ort.OrtValue]:
        """The keys and values of the step before, but for those that only rows that left had."""
        if not self._past or not longest:
            name = caches(CROSS, 0)[0]
            _, heads, _, width = self._cross[name].shape()
            return [ort_value(np.zeros((1, heads, 0, width), np.float32))] * (len(self._cross) - 1)
        length = self._past[0].shape()[2]
        if length == longest:
            return self._past
        return [ort_value(value.numpy()[:, :, length - longest :]) for value in self._past]

    def _keep(self, rows: list[int]) -> None:
        """Let the others go."""
        if len(rows) == len(self._going):
            return
        self._going = [self._going[i] for i in rows]
        self._order = self._order[rows]
        if not rows:
            self._cross, self._past, self._cache = {}, [], None
        elif self._cache is not None:
            self._cache.take(rows)
        else:
            length = max(map(self._length, self._going))
            for name, values in self._cross.items():
                self._cross[name] = ort_value(_to_length(name, values.numpy()[rows], length))


def _to_length(name: str, values: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Keys, values or what hides padding, with so many places for the encoder's tokens: padded, or cut."""
    axis, fill = (3, _LOWEST) if name == CROSS_BIAS else (2, np.float32(0))
    more = length - values.shape[axis]
    if more <= 0:
        return values[..., :length] if axis == 3 else values[:, :, :length]
    widths = [(0, more if i == axis else 0) for i in range(values.ndim)]
    return np.pad(values, widths, constant_values=fill)

"""Several tasks at once.

Batches whose rows are of several tasks: tasks of one structure in one pass, each for its own rows.  Of tasks that write
text a pass is a step (``edgepeft.runtime.text_generation``).

All tasks on one input: the layers that they leave to the backbone run once, then each task's rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture, Role
from edgepeft.backbones.pooling import Pooling
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.common.messages import counted
from edgepeft.graph.cut import above, below, untouched_values
from edgepeft.graph.in_place import hide_fronts, in_place
from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS, may_be_empty, mix, mix_text, slotted
from edgepeft.graph.names import LOGITS
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.generation import TextSession
from edgepeft.runtime.inputs import (
    Inputs,
    Readable,
    check_rows,
    in_batches,
    pad_together,
    passes,
    read_for_kind,
    unpack_tokens,
    write_rows,
)
from edgepeft.runtime.prediction import RowResult, finite_or_error, predictions, require_width, warn_once
from edgepeft.runtime.session import failing_as, run_session
from edgepeft.runtime.session_pool import (
    LOWER_LAYERS,
    BoundSession,
    SessionPool,
    TaskSession,
    ort_value,
    structure_and_values,
)
from edgepeft.tasks._answers import Prediction

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

Opened = TaskSession | TextSession
Values = dict[str, ort.OrtValue]
Tasks = Sequence[tuple[str, TaskSession]]  # of one structure, by slot
GraphOf = Callable[[Bundle, str], onnx.ModelProto]
Mix = Callable[[onnx.ModelProto, Iterable[str], Mapping[str, str], int], onnx.ModelProto | None]

MAX_TASKS = 16  # in one pass: roberta-base with Pfeiffer adapters opens in 0.3 s for 2 tasks, 0.6 for 8, 1.2 for 16


class Slots:
    """Sessions whose graphs have slots for several tasks of one structure, by structure and number of slots.

    ``graph_of`` gives a task's graph, ``mix`` a structure's with slots; ``name`` is that of the table of sessions.
    Several threads may use them.

    Where tasks leave a batch one by one (``few``), graphs have powers of two of slots, and some are empty if they can
    be: a session takes longer to open than it runs.
    """

    def __init__(self, pool: SessionPool, graph_of: GraphOf, mix: Mix, *, name: str, few: bool = False) -> None:
        self._pool, self._lock, self._graph_of, self._mix, self._few = pool, pool.lock, graph_of, mix, few
        self._exact: set[bytes] = set()  # structures of which no slot may be empty
        self._structures: dict[bytes, onnx.ModelProto | None] = {}
        self._feeds = WeakKeyDictionary[TaskSession, Values]()  # of those whose values are constants
        self._sessions: dict[tuple[bytes, int], TaskSession] = pool.table(name)

    def can_mix(self, tasks: Mapping[str, TaskSession]) -> bool:
        """Whether rows of these tasks, of one structure, may stand in one pass; their values are ready then."""
        task, session = next(iter(tasks.items()))
        key = session.structure or b""
        try:
            with self._lock:
                if key not in self._structures:
                    own = structure_and_values(self._graph_of(self._pool.bundle, task))
                    sites = self._pool.bundle.manifest.backbone.sites
                    mixed = None if own is None else self._mix(own.structure, own.feeds, sites, 2)
                    self._structures[key] = None if own is None or mixed is None else own.structure
                    if mixed is None or not self._few or not may_be_empty(mixed):
                        self._exact.add(key)
                if self._structures[key] is None:
                    return False
                for each in tasks.items():
                    self._fed(*each)
                return True
        except BundleError:  # a file was replaced since; the tasks' own sessions answer as before
            return False

    def _fed(self, task: str, session: TaskSession) -> Values:
        if session.feeds:
            return session.feeds
        if session not in self._feeds:
            own = structure_and_values(self._graph_of(self._pool.bundle, task))
            if own is None:
                raise BundleError(f"the delta graph of {task} changed while the bundle was open; open it again.")
            self._feeds[session] = {name: ort.OrtValue.ortvalue_from_numpy(v) for name, v in own.feeds.items()}
        return self._feeds[session]

    def run(
        self,
        tasks: Tasks,
        counts: Mapping[str, NDArray[np.integer]],
        values: Mapping[str, ort.OrtValue],
        outputs: Sequence[str],
    ) -> list[ort.OrtValue]:
        """The named outputs of one run for the rows of several tasks, which stand in the order of the tasks.

        ``counts`` are ROW_COUNTS and TOKEN_COUNTS, how many each task has; ``values`` all that their sessions take.
        """
        session, feeds = self._prepared(tasks, counts)
        with failing_as("stops in a batch of several tasks"):
            return session.run_values(outputs, {**feeds, **values})

    def bound(self, tasks: Tasks, counts: Mapping[str, NDArray[np.integer]]) -> BoundSession:
        """Bind what ``run`` would run, for runs that share their values."""
        session, feeds = self._prepared(tasks, counts)
        return BoundSession(session.shared, feeds, self._pool.used)

    def _prepared(self, tasks: Tasks, counts: Mapping[str, NDArray[np.integer]]) -> tuple[TaskSession, Values]:
        with self._lock:
            key = tasks[0][1].structure or b""
            n = len(tasks) if key in self._exact else 1 << (len(tasks) - 1).bit_length()
            fed = [self._fed(*task) for task in tasks]
            fed += fed[:1] * (n - len(tasks))
            if (session := self._sessions.get((key, n))) is None:
                structure = self._structures[key]
                assert structure is not None, "can_mix has said so"
                graph = self._mix(structure, fed[0], self._pool.bundle.manifest.backbone.sites, n)
                assert graph is not None, "it can be mixed with two slots"
                session = self._sessions[key, n] = self._pool.open_graph(graph)
        feeds = {slotted(name, i): value for i, values in enumerate(fed) for name, value in values.items()}
        for name in (ROW_COUNTS, TOKEN_COUNTS):
            feeds[name] = ort_value(np.pad(counts[name], (0, n - len(tasks))).astype(np.int64))
        return session, feeds


class TextSlots(NamedTuple):
    """Sessions for several tasks of a structure, of both graphs."""

    encoder: Slots
    decoder: Slots

    def can_mix(self, task: str, session: TextSession) -> bool:
        """Whether its rows may stand in a step with those of other tasks of its structure, and at other steps."""
        if session.decoder.by_row:
            return True
        pairs = zip(self, (session.encoder, session.decoder), strict=True)
        return all(slots.can_mix({task: own}) for slots, own in pairs if own is not None)


class Mixer:
    """Runs rows of several tasks together; several threads may use it."""

    def __init__(self, runtime: Runtime) -> None:
        pool = runtime._pool
        self._runtime, self._pool = runtime, pool
        self._slots = Slots(pool, Bundle.graph, mix, name="mixed")
        of_text = partial(Slots, pool, few=True)
        encoder = of_text(lambda own, task: own.text_graphs_of(task).encoder, mix_text, name="mixed encoder")
        decoder = of_text(lambda own, task: own.text_graphs_of(task).decoder, _mix_decoder, name="mixed decoder")
        self.text = TextSlots(encoder, decoder)

    def answers(
        self,
        tasks: Sequence[str | None],
        texts: Sequence[Readable],
        *,
        strict: bool,
        pooling: Pooling,
        decoding: Decoding,
    ) -> list[RowResult]:
        """Answer as ``Runtime.predict_mixed`` does."""
        if len(tasks) != len(texts):
            told = f"{counted(len(tasks), 'task')} for {counted(len(texts), 'text')}"
            raise UsageError(f"each text needs a task; found {told}.")
        rows: dict[str | None, list[int]] = {}
        for row, task in enumerate(tasks):
            rows.setdefault(task, []).append(row)
        groups: list[list[str | None]] = [[*rows]]
        refused: dict[str | None, EdgepeftError] = {}
        if len(rows) != 1 or tasks[0] not in self._runtime._sessions:  # else there is nothing to group or to open
            groups, refused = self._groups(rows, strict=strict)
        answers: dict[int, RowResult] = {row: error for task, error in refused.items() for row in rows[task]}
        for group in groups:
            members = [row for task in group for row in rows[task]]
            given = {task: [texts[row] for row in rows[task]] for task in group}
            results = self._answers(given, pooling, decoding) if strict else self._of_each(given, pooling, decoding)
            answers.update(zip(members, results, strict=True))
        found = [finite_or_error(answers[row], task) for row, task in enumerate(tasks)]
        if strict and (error := next((each for each in found if isinstance(each, EdgepeftError)), None)):
            raise error
        return found

    def _of_each(
        self, texts: Mapping[str | None, list[Readable]], pooling: Pooling, decoding: Decoding
    ) -> Sequence[RowResult]:
        """Answer as ``_answers`` does; where that fails, task by task, so that the failure of one is its own."""
        try:
            return self._answers(texts, pooling, decoding)
        except BundleError as error:
            if len(texts) == 1:
                return [error for rows in texts.values() for _ in rows]
        alone = ({task: rows} for task, rows in texts.items())
        return [answer for each in alone for answer in self._of_each(each, pooling, decoding)]

    def _answers(
        self, texts: Mapping[str | None, list[Readable]], pooling: Pooling, decoding: Decoding
    ) -> Sequence[RowResult]:
        bundle = self._runtime.bundle
        if None in texts:  # alone, as it shares no passes
            _, inputs = self._runtime._tokenizing.read_and_tokenize(texts[None], bundle.architecture.max_length)
            shape = (len(texts[None]), bundle.architecture.hidden_size)
            return list(self._runtime._output(None, pooling.embedding, inputs, shape))
        named = {task: rows for task, rows in texts.items() if task is not None}
        writes = bundle.entry(next(iter(named))).task_kind.writes
        if writes and (len(named) == 1 or decoding.beams > 1):
            return [answer for task, rows in named.items() for answer in self._runtime.write(task, rows, decoding)]
        if len(named) == 1:
            return [answer for task, rows in named.items() for answer in self._runtime._predictions(task, rows)]
        if writes:
            return self._runtime.writing(decoding).answers(named)
        of_tasks = self._together(named)
        return [answer for of_task in of_tasks for answer in warn_once(of_task, self._runtime._noted)]

    def _groups(
        self, tasks: Iterable[str | None], *, strict: bool
    ) -> tuple[list[list[str | None]], dict[str | None, EdgepeftError]]:
        """Tasks that share their passes, and the errors of the others; opens every session."""
        groups: list[list[str | None]] = []
        refused: dict[str | None, EdgepeftError] = {}
        alike: dict[bytes, dict[str, Opened]] = {}
        for task in tasks:
            try:
                session = self._runtime.prepare(task)
            except EdgepeftError as error:
                if strict:
                    raise
                refused[task] = error
                continue
            if task is None or session.structure is None or self._pool.bundle.entry(task).scores_words:
                groups.append([task])
            else:
                alike.setdefault(session.structure, {})[task] = session
        for members in alike.values():
            mixed = len(members) > 1 and self._can_mix(members)
            groups += in_batches(members, MAX_TASKS) if mixed else [[task] for task in members]
        return groups, refused

    def _can_mix(self, tasks: Mapping[str, Opened]) -> bool:
        """Whether rows of several tasks of one structure may stand in one pass; their values are ready then."""
        plain = {task: session for task, session in tasks.items() if isinstance(session, TaskSession)}
        written = {task: session for task, session in tasks.items() if isinstance(session, TextSession)}
        return self._slots.can_mix(plain) if plain else all(starmap(self.text.can_mix, written.items()))

    def _together(self, texts: Mapping[str, Sequence[Readable]]) -> list[list[Prediction]]:
        """Each task's answers to its texts; the tasks are of one structure."""
        entries = [self._pool.bundle.entry(task) for task in texts]
        pairs = zip(texts.values(), entries, strict=True)
        read = [read_for_kind(entry.task_kind, rows, entry.source) for rows, entry in pairs]
        encoded = [
            self._runtime._tokenizing.tokens(rows.texts, entry.max_length, entry.task_kind)
            for rows, entry in zip(read, entries, strict=True)
        ]
        inputs = pad_together([batch.inputs for batch in encoded], self._pool.bundle.architecture.pad_token_id)
        slots = np.repeat(np.arange(len(texts)), [len(batch.encodings) for batch in encoded])
        logits = self._logits({task: self._runtime.session(task) for task in texts}, slots, inputs)
        return [predictions(*of_task) for of_task in zip(texts, entries, read, logits, encoded, strict=True)]

    def _logits(
        self, tasks: Mapping[str, TaskSession], slots: NDArray[np.intp], inputs: Inputs
    ) -> list[NDArray[np.float32]]:
        """[its rows, (length,) its outputs] of each task; ``slots`` [batch]: each row's index in ``tasks``, rising."""
        check_rows(inputs["attention_mask"])
        sessions, entries = list(tasks.items()), [self._pool.bundle.entry(task) for task in tasks]
        counts, prompt = np.bincount(slots, minlength=len(tasks)), entries[0].prompt_length
        length = inputs["attention_mask"].shape[1]
        shapes = (entry.task_kind.logits_shape(n, length) for n, entry in zip(counts.tolist(), entries, strict=True))
        logits = [np.zeros(shape, np.float32) for shape in shapes]
        within = np.arange(len(slots)) - (np.cumsum(counts) - counts)[slots]
        for rows, part in passes(inputs, prompt=prompt):
            present, slot = np.unique(slots[rows], return_inverse=True)
            n = len(present)  # exactly: a slot without rows stops in SPARTAN's nodes, which read their shapes
            order, tokens = np.argsort(slot, kind="stable"), (part["attention_mask"] != 0).sum(1) + prompt
            held = {ROW_COUNTS: np.bincount(slot, minlength=n), TOKEN_COUNTS: np.bincount(slot, tokens, n)}
            values = {name: ort_value(given[order]) for name, given in part.items()}
            named = [slotted(LOGITS, i) for i in range(n)]
            found = self._slots.run([sessions[i] for i in present], held, values, named)
            for k, (i, value) in enumerate(zip(present, found, strict=True)):
                own, outputs = slot == k, value.numpy()
                if entries[i].task_kind.per_token:
                    outputs = unpack_tokens(outputs, part["attention_mask"][own])
                write_rows(logits[i], within[rows[own]], require_width(entries[i].n_outputs, sessions[i][0], outputs))
        return logits


def _mix_decoder(
    structure: onnx.ModelProto, feeds: Iterable[str], sites: Mapping[str, str], n: int
) -> onnx.ModelProto | None:
    """A step of the decoder with ``n`` slots, for texts of unequal lengths; None where there is none."""
    mixed = mix_text(structure, feeds, sites, n)
    if mixed is None:
        return None
    lowered = in_place(mixed)
    return hide_fronts(mixed) if lowered is None else lowered.model


class LowerLayersPlan(NamedTuple):
    """``layers`` run once for the tasks of ``shared``; those of ``whole`` run by themselves."""

    layers: int
    shared: tuple[str, ...]
    whole: tuple[str, ...]


class LowerLayers:
    """Sessions of a bundle's lower layers and of what its tasks put on them, opened when needed."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool, self._bundle = pool, pool.bundle
        self._values = _layer_values(self._bundle.architecture, self._bundle.manifest.backbone.sites)
        self._sessions: dict[tuple[int, str | None], TaskSession] = pool.table(LOWER_LAYERS)
        self._depths: dict[str, int] = {}

    def plan(self, tasks: Sequence[str]) -> LowerLayersPlan:
        """Plan what these tasks share; tasks with a prompt share nothing."""
        for task in tasks:
            if task not in self._depths:
                architecture, sites = self._bundle.architecture, self._bundle.manifest.backbone.sites
                self._depths[task] = shared_layers(self._bundle.spliced(task), architecture, sites)
        return plan_lower_layers({task: self._depths[task] for task in tasks}, self._bundle.architecture.n_layers)

    def logits(
        self, shared: LowerLayersPlan, inputs: Mapping[str, NDArray[np.int64]]
    ) -> dict[str, NDArray[np.float32]]:
        """[batch, outputs] of each task of ``shared.shared``."""
        check_rows(inputs["attention_mask"])
        cut, shape = shared.layers, inputs["input_ids"].shape
        value = self._values[cut - 1]
        entries = {task: self._bundle.entry(task) for task in shared.shared}
        answers = {task: np.zeros(entry.task_kind.logits_shape(*shape), np.float32) for task, entry in entries.items()}
        known = self._bundle.architecture.inputs
        for rows, part in passes({name: inputs[name] for name in known}):
            hidden = run_session(self._session(cut, None), value, part)
            with_hidden: dict[str, NDArray[Any]] = {**part, value: hidden}
            for task, logits in answers.items():
                part_of = run_session(self._session(cut, task), LOGITS, with_hidden)
                write_rows(logits, rows, require_width(logits.shape[-1], task, part_of))
        return answers

    def _session(self, cut: int, task: str | None) -> TaskSession:
        session = self._sessions.get((cut, task))  # another thread may close it at any time
        if session is None:
            model, value = self._bundle.spliced(task), self._values[cut - 1]
            width = self._bundle.architecture.hidden_size
            part = below(model, value) if task is None else above(model, {value: ("tokens", width)})
            drop_unread_rows(part)
            session = self._sessions[cut, task] = self._pool.open(part)
        return session


def _layer_values(architecture: Architecture, sites: Mapping[str, str]) -> tuple[str, ...]:
    """The value of each layer's output, from below."""
    return tuple(sites[site.name] for site in architecture.sites_of(Role.LAYER_OUTPUT))


def shared_layers(model: onnx.ModelProto, architecture: Architecture, sites: Mapping[str, str]) -> int:
    """How many of the lowest layers a spliced task leaves as the backbone has them, the embeddings included."""
    return untouched_values(model.graph, _layer_values(architecture, sites))


def plan_lower_layers(depths: Mapping[str, int], n_layers: int) -> LowerLayersPlan:
    """Cut where the fewest layers are run in all; ``depths`` are ``shared_layers`` by task.

    With a cut at c, c layers run once, n - c for each task that leaves so many alone, and n for each other.
    """

    def cost(cut: int) -> int:
        return cut + sum(n_layers - cut if depth >= cut else n_layers for depth in depths.values())

    best = min({0, *depths.values()}, key=lambda cut: (cost(cut), cut))
    shared = tuple(task for task, depth in depths.items() if depth >= best > 0)
    return LowerLayersPlan(best, shared, tuple(task for task in depths if task not in shared))

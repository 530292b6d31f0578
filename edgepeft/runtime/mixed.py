"""Batches whose rows are of several tasks: tasks of one structure in one pass, each for its own rows.

Of tasks that write text a pass is a step (``edgepeft.runtime.text_generation``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from threading import RLock

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import EdgepeftError
from edgepeft.graph.in_place import hide_fronts, in_place
from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS, mix, mix_text, slotted
from edgepeft.graph.names import LOGITS
from edgepeft.runtime.generation import TextSession
from edgepeft.runtime.inputs import Inputs, check_rows
from edgepeft.runtime.passes import in_batches, passes, put, unpacked
from edgepeft.runtime.prediction import of_width
from edgepeft.runtime.slots import Slots, TextSlots
from edgepeft.runtime.weights import TaskSession, Weights

Opened = TaskSession | TextSession

MOST_TASKS = 16  # in one pass: roberta-base with Pfeiffer adapters opens in 0.3 s for 2 tasks, 0.6 for 8, 1.2 for 16


class Mixer:
    """Runs rows of several tasks together; several threads may use it."""

    def __init__(self, bundle: Bundle, weights: Weights, lock: RLock) -> None:
        self._bundle = bundle
        self._slots = Slots(bundle, weights, lock, Bundle.graph, mix)
        graphs = (
            lambda bundle, task: bundle.text_graphs_of(task)[0],
            lambda bundle, task: bundle.text_graphs_of(task)[1],
        )
        both = zip(graphs, (mix_text, _mix_decoder), strict=True)
        self.text = TextSlots(*(Slots(bundle, weights, lock, graph_of, mix, few=True) for graph_of, mix in both))

    def close(self) -> None:
        """Let the sessions go."""
        for slots in (self._slots, *self.text):
            slots.close()

    def renew(self, bundle: Bundle, changed: Sequence[str]) -> None:
        """Take over a manifest that was read again: the values of changed tasks are dropped."""
        self._bundle = bundle
        for slots in (self._slots, *self.text):
            slots.renew(bundle, changed)

    def forget(self, session: object) -> None:
        """Let one session go; it opens again when it is needed."""
        for slots in (self._slots, *self.text):
            slots.forget(session)

    def groups(
        self, tasks: Iterable[str | None], opened: Callable[[str | None], Opened], *, strict: bool
    ) -> tuple[list[list[str | None]], dict[str | None, EdgepeftError]]:
        """Tasks that share their passes, and the errors of the others; opens every session."""
        groups: list[list[str | None]] = []
        refused: dict[str | None, EdgepeftError] = {}
        alike: dict[bytes, dict[str, Opened]] = {}
        for task in tasks:
            try:
                session = opened(task)
            except EdgepeftError as error:
                if strict:
                    raise
                refused[task] = error
                continue
            if task is None or session.structure is None or self._bundle.entry(task).scores_words:
                groups.append([task])
            else:
                alike.setdefault(session.structure, {})[task] = session
        for members in alike.values():
            mixed = len(members) > 1 and self.can_mix(members)
            groups += in_batches(members, MOST_TASKS) if mixed else [[task] for task in members]
        return groups, refused

    def can_mix(self, tasks: Mapping[str, Opened]) -> bool:
        """Whether rows of several tasks of one structure may stand in one pass; their values are ready then."""
        plain = {task: session for task, session in tasks.items() if isinstance(session, TaskSession)}
        written = {task: session for task, session in tasks.items() if isinstance(session, TextSession)}
        return self._slots.can_mix(plain) if plain else all(starmap(self.text.can_mix, written.items()))

    def logits(
        self, tasks: Mapping[str, TaskSession], slots: NDArray[np.intp], inputs: Inputs
    ) -> list[NDArray[np.float32]]:
        """[its rows, (length,) its outputs] of each task; ``slots`` [batch] holds each row's index into ``tasks``,
        ascending.
        """
        check_rows(inputs["attention_mask"])
        sessions, entries = list(tasks.items()), [self._bundle.entry(task) for task in tasks]
        counts, prompt = np.bincount(slots, minlength=len(tasks)), entries[0].prompt_length
        length = inputs["attention_mask"].shape[1]
        shapes = (entry.logits_shape(n, length) for n, entry in zip(counts.tolist(), entries, strict=True))
        logits = [np.zeros(shape, np.float32) for shape in shapes]
        within = np.arange(len(slots)) - (np.cumsum(counts) - counts)[slots]
        for rows, part in passes(inputs, prompt=prompt):
            present, slot = np.unique(slots[rows], return_inverse=True)
            for k, outputs in enumerate(self.run([sessions[i] for i in present], slot, part, prompt)):
                i, own = present[k], slot == k
                per_token = entries[i].task_kind.per_token
                found = unpacked(outputs, part["attention_mask"][own]) if per_token else outputs
                put(logits[i], within[rows[own]], of_width(entries[i].n_outputs, sessions[i][0], found))
        return logits

    def run(
        self, tasks: Sequence[tuple[str, TaskSession]], slots: NDArray[np.intp], inputs: Inputs, prompt: int
    ) -> list[NDArray[np.float32]]:
        """Logits [its rows, its outputs] of each task, its rows in their order in the batch.

        ``slots`` [batch] holds each row's index into ``tasks``, which are of one structure; ``inputs`` are all those
        that their sessions take.
        """
        n = len(tasks)  # exactly: a slot without rows stops in SPARTAN's nodes, which read their shapes
        order = np.argsort(slots, kind="stable")
        tokens = (inputs["attention_mask"] != 0).sum(1) + prompt
        counts = {ROW_COUNTS: np.bincount(slots, minlength=n), TOKEN_COUNTS: np.bincount(slots, tokens, n)}
        values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(inputs[name][order])) for name in inputs}
        logits = self._slots.run(tasks, counts, values, [slotted(LOGITS, i) for i in range(n)])
        return [value.numpy() for value in logits]


def _mix_decoder(
    structure: onnx.ModelProto, feeds: Iterable[str], sites: Mapping[str, str], n: int
) -> onnx.ModelProto | None:
    """A step of the decoder with ``n`` slots, for texts of unequal lengths; None where there is none."""
    mixed = mix_text(structure, feeds, sites, n)
    if mixed is None:
        return None
    lowered = in_place(mixed)
    return hide_fronts(mixed) if lowered is None else lowered.model

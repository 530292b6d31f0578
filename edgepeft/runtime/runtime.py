"""Running the tasks of a bundle on texts: one tokenizer, one weights file, a spliced session per task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.errors import BundleError, DataError
from edgepeft.graph.names import LOGITS
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.manifest import TaskEntry
from edgepeft.runtime.passes import passes
from edgepeft.runtime.prediction import Prediction, predictions
from edgepeft.runtime.session import open_session, run_session

__all__ = ["Runtime", "check_rows", "in_batches"]

T = TypeVar("T")


@dataclass
class Truncation:
    """How many rows lost tokens so far, so that it can be said once."""

    rows: int = 0


class Runtime:
    """An opened bundle that answers; sessions open with the first request to their task.

    ``threads`` caps the intra-op threads; None takes what affinity and quota allow.
    """

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        self.bundle = Bundle(folder)
        self.threads = threads
        self.truncation = Truncation()
        self._sessions: dict[str | None, ort.InferenceSession] = {}
        self._encoder: TextEncoder | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The bundle's tasks, by name."""
        return tuple(self.bundle.manifest.tasks)

    def reload(self) -> tuple[str, ...]:
        """Read the manifest again and let go of what changed in it; the tasks that are new, replaced or gone."""
        before, self.bundle = self.bundle.manifest.tasks, Bundle(self.bundle.folder)
        now = self.bundle.manifest.tasks
        changed = tuple(name for name in {**before, **now} if before.get(name) != now.get(name))
        for name in changed:
            self._sessions.pop(name, None)
        return changed

    def session(self, task: str | None) -> ort.InferenceSession:
        """The session of a task, or of the bare backbone for None.

        Raises:
            UnknownName: no such task.
            BundleError: a file is damaged, or foreign.
        """
        if task not in self._sessions:
            model = self.bundle.graph(task)
            self._sessions[task] = open_session(model, self.bundle.folder, self.threads)
        return self._sessions[task]

    def logits(self, task: str, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """[batch, outputs] from token ids and masks [batch, length], padded on any side.

        Raises:
            DataError: a row without a single real token.
        """
        n_outputs = self.bundle.entry(task).n_outputs
        found = np.empty((len(inputs["input_ids"]), n_outputs), np.float32)
        for rows, logits in self._run(task, LOGITS, inputs):
            if logits.shape[1] != n_outputs:
                raise BundleError(f"task {task} gives {logits.shape[1]} logits; its manifest entry names {n_outputs}.")
            found[rows] = logits
        return found

    def last_hidden_state(self, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """[batch, length, hidden size] of the bare backbone, zero where there is no token.

        Raises:
            DataError: a row without a single real token.
        """
        shape = (*inputs["input_ids"].shape, self.bundle.architecture.hidden_size)
        found = np.zeros(shape, np.float32)
        for rows, hidden in self._run(None, "last_hidden_state", inputs):
            found[rows, : hidden.shape[1]] = hidden
        return found

    def _run(
        self, task: str | None, output: str, inputs: Mapping[str, NDArray[np.int64]]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """One output, pass by pass, with the rows that it belongs to."""
        check_rows(inputs["attention_mask"])
        session = self.session(task)
        known = [value.name for value in session.get_inputs()]
        prompt = 0 if task is None else self.bundle.entry(task).prompt_length
        for rows, part in passes({name: inputs[name] for name in known}, prompt=prompt):
            yield rows, run_session(session, output, part)

    def predict(self, task: str, texts: Sequence[Text]) -> list[Prediction]:
        """One answer for each text, in order; longer texts are truncated and counted in ``truncation``."""
        entry = self.bundle.entry(task)
        if not texts:
            return []
        return predictions(task, entry.labels, self.logits(task, self._encode(entry, texts)))

    def predict_all(self, tasks: Sequence[str], texts: Sequence[Text]) -> dict[str, list[Prediction]]:
        """The answers of several tasks on the same texts, by task."""
        return {task: self.predict(task, texts) for task in tasks}

    def _encode(self, entry: TaskEntry, texts: Sequence[Text]) -> dict[str, NDArray[np.int64]]:
        self._encoder = self._encoder or self.bundle.encoder()
        batch = self._encoder.encode(texts, entry.max_length)
        self.truncation.rows += batch.truncated
        return batch.inputs


def check_rows(mask: NDArray[np.int64]) -> None:
    """See that each row has a token: attention over nothing has no answer.

    Raises:
        DataError: names the first row that is masked throughout.
    """
    empty = np.flatnonzero(~(mask != 0).any(axis=1))
    if empty.size:
        raise DataError(f"row {empty[0]} of the batch is masked throughout; every row needs at least one token.")


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive groups of at most ``size``, in constant memory."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch

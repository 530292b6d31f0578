"""Batches whose rows are of several tasks: tasks of one structure in one pass, each for its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.errors import BundleError, UsageError
from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS, mix, slotted
from edgepeft.graph.names import LOGITS
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.session import failing_as
from edgepeft.runtime.weights import TaskSession, Weights

__all__ = ["MOST_TASKS", "Mixer"]

MOST_TASKS = 16  # in one pass: roberta-base with Pfeiffer adapters opens in 0.3 s for 2 tasks, 0.6 for 8, 1.2 for 16


class Mixer:
    """Sessions on graphs with slots, by structure and number of slots; several threads may use them."""

    def __init__(self, bundle: Bundle, weights: Weights, lock: RLock) -> None:
        self._bundle, self._weights, self._lock = bundle, weights, lock
        self._structures: dict[bytes, onnx.ModelProto | None] = {}
        self._feeds: dict[str, dict[str, ort.OrtValue]] = {}  # of tasks whose own session has its values as constants
        self._sessions: dict[tuple[bytes, int], ort.InferenceSession] = {}

    def close(self) -> None:
        """Let the sessions go."""
        self._structures.clear()
        self._feeds.clear()
        self._sessions.clear()

    def renew(self, bundle: Bundle, changed: Sequence[str]) -> None:
        """Take over a manifest that was read again: the values of changed tasks are dropped."""
        self._bundle = bundle
        for task in changed:
            self._feeds.pop(task, None)

    def forget(self, session: ort.InferenceSession) -> None:
        """Let one session go; it opens again when it is needed."""
        self._sessions = {key: each for key, each in self._sessions.items() if each is not session}

    def can_mix(self, tasks: Mapping[str, TaskSession]) -> bool:
        """Whether rows of several tasks of one structure may stand in one pass; their values are ready then."""
        if len(tasks) < 2:
            return False
        task, session = next(iter(tasks.items()))
        key = session.structure or b""
        try:
            with self._lock:
                if key not in self._structures:
                    parted = self._weights.parted(self._bundle.graph(task))
                    sites = self._bundle.manifest.backbone.sites
                    fits = parted is not None and mix(parted.structure, parted.feeds, sites, 2) is not None
                    self._structures[key] = parted.structure if parted is not None and fits else None
                return self._structures[key] is not None and all(self._fed(*each) for each in tasks.items())
        except BundleError:  # a file was replaced since; the tasks' own sessions answer as before
            return False

    def _fed(self, task: str, session: TaskSession) -> dict[str, ort.OrtValue]:
        if session.feeds:
            return session.feeds
        if task not in self._feeds:
            parted = self._weights.parted(self._bundle.graph(task))
            if parted is None:
                raise BundleError(f"the delta graph of {task} changed while the bundle was open; open it again.")
            self._feeds[task] = {name: ort.OrtValue.ortvalue_from_numpy(v) for name, v in parted.feeds.items()}
        return self._feeds[task]

    def _session(self, key: bytes, n: int, feeds: Mapping[str, ort.OrtValue]) -> ort.InferenceSession:
        if (key, n) not in self._sessions:
            structure = self._structures.get(key)
            sites = self._bundle.manifest.backbone.sites
            graph = None if structure is None else mix(structure, feeds, sites, n)
            if graph is None:
                raise UsageError(f"the runtime of {self._bundle.folder} is closed; open another one.")
            self._sessions[key, n] = self._weights.open_graph(graph)
        return self._sessions[key, n]

    def run(
        self, tasks: Sequence[tuple[str, TaskSession]], slots: NDArray[np.intp], inputs: Inputs, prompt: int
    ) -> list[NDArray[np.float32]]:
        """Logits [its rows, its outputs] of each task, its rows in their order in the batch.

        ``slots`` [batch] holds each row's index into ``tasks``, which are of one structure; ``inputs`` are all those
        that their sessions take.

        Raises:
            BundleError: a file of the bundle is damaged, or ONNX Runtime stops within the model.
        """
        n = len(tasks)  # exactly: a slot without rows stops in SPARTAN's nodes, which read their shapes
        with self._lock:
            fed = [self._fed(*task) for task in tasks]
            session = self._session(tasks[0][1].structure or b"", n, fed[0])
        self._weights.used(session)
        order = np.argsort(slots, kind="stable")
        tokens = (inputs["attention_mask"] != 0).sum(1) + prompt
        whole = {name: inputs[name][order] for name in inputs}
        whole[ROW_COUNTS] = np.bincount(slots, minlength=n)
        whole[TOKEN_COUNTS] = np.bincount(slots, tokens, n)
        feeds = {slotted(name, i): value for i, values in enumerate(fed) for name, value in values.items()}
        for name, values in whole.items():
            feeds[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values, np.int64))
        outputs = [slotted(LOGITS, i) for i in range(n)]
        with failing_as("stops in a batch of several tasks"):
            logits = session.run_with_ort_values(outputs, feeds)
        return [value.numpy() for value in logits]

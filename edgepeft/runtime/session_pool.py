"""Open a bundle's sessions: all map one file of weights, and tasks of one structure share one session."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.graph.names import PLACE
from edgepeft.graph.parameters import StructuredTask, computed_values, make_inputs
from edgepeft.runtime.placing import join, place, place_joined
from edgepeft.runtime.prepacked import Prepacked, hold_prepacked
from edgepeft.runtime.session import SessionLru, most_sessions, open_session, return_free_memory

LOWER_LAYERS = "lower layers"  # the table of sessions on layers that tasks share


def ort_value(array: NDArray[Any]) -> ort.OrtValue:
    """Make a value of ONNX Runtime of an array."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


class BoundSession:
    """A session with values that stay where they are from run to run, which ONNX Runtime reads and writes there."""

    def __init__(
        self,
        session: ort.InferenceSession,
        given: Mapping[str, ort.OrtValue],
        used: Callable[[ort.InferenceSession], object],
    ) -> None:
        self._session, self._used, self._binding = session, used, session.io_binding()
        self._kept: list[ort.OrtValue] = []  # a binding does not keep NumPy's memory
        self.bind(given, {})

    def bind(self, inputs: Mapping[str, ort.OrtValue], outputs: Mapping[str, ort.OrtValue]) -> None:
        """Have the session read and write these values in place."""
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._kept += [*inputs.values(), *outputs.values()]

    @property
    def inputs(self) -> set[str]:
        """Name all inputs of the session."""
        return {value.name for value in self._session.get_inputs()}

    def run(self) -> None:
        """Run once on the values that are bound."""
        self._used(self._session)
        self._session.run_with_iobinding(self._binding)


class TaskSession:
    """A task's session: token ids and masks in; where tasks share it, the task's own values (``feeds``) are fed.

    Tasks of one structure have equal ``structure``; None where no other task can share the session.  ``by_row``: each
    row may be of another task (``graph.by_row``), and values have an axis of rows in front, here of one.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        feeds: Mapping[str, NDArray[np.float32]],
        structure: bytes | None,
        used: Callable[[ort.InferenceSession], object] = lambda _: None,
        by_row: bool = False,
    ) -> None:
        self.shared, self.structure, self._used, self.by_row = session, structure, used, by_row
        self.feeds = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}

    @property
    def values_bytes(self) -> int:
        """Count the bytes of the values that are fed."""
        return sum(value.tensor_size_in_bytes() for value in self.feeds.values())

    def runs_on(self, session: object) -> bool:
        """Tell whether the task runs on that session."""
        return self.shared is session

    def get_inputs(self) -> list[Any]:
        """Describe the inputs of ``run``, as ONNX Runtime does."""
        return [value for value in self.shared.get_inputs() if value.name not in self.feeds]

    def get_outputs(self) -> list[Any]:
        """Describe the outputs of ``run``, as ONNX Runtime does."""
        return list(self.shared.get_outputs())

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        """Compute the named outputs for a batch."""
        if not self.feeds:
            self._used(self.shared)
            return self.shared.run(list(outputs), inputs)
        tokens = {name: ort_value(values) for name, values in inputs.items()}
        return [value.numpy() for value in self.run_values(outputs, tokens)]

    def run_values(self, outputs: Sequence[str], inputs: Mapping[str, ort.OrtValue]) -> list[ort.OrtValue]:
        """Run with values that stay where ONNX Runtime has them."""
        self._used(self.shared)
        return self.shared.run_with_ort_values(list(outputs), {**self.feeds, **inputs})

    def bound(self, rows: Sequence[TaskSession] = ()) -> BoundSession:
        """Bind values that runs share; ``rows``: the session of each row's task, where several share this one."""
        feeds = self.feeds
        if any(row is not rows[0] for row in rows):
            values = {name: [row.feeds[name].numpy() for row in rows] for name in feeds}
            feeds = {name: ort_value(np.concatenate(each)) for name, each in values.items()}
        return BoundSession(self.shared, feeds, self._used)


def structure_and_values(model: onnx.ModelProto) -> StructuredTask | None:
    """Split a task's graph into structure and values; None where it changes matrices of the backbone."""
    values: dict[str, NDArray[Any]] = {}  # what follows from a task's own values alone
    if (graph := computed_values(model)) is not None:
        session = open_session(graph, Path(), threads=1)
        names = [value.name for value in session.get_outputs()]
        values = dict(zip(names, session.run(names, {}), strict=True))
    return make_inputs(model, values)


class SessionPool:
    """Opens sessions on a bundle's graphs, and closes the least recently used one where too many are open.

    The first session opens the cache of prepacked weights.  A thread holds ``lock`` while it calls the pool, but for
    ``used``; runs need no lock.  What runs on sessions is kept in tables, and a session closes as what runs on it is
    taken out of all of them.  ``move`` is called with the session of a task that shares one from now on: opened again,
    the task takes its values' bytes only.
    """

    def __init__(
        self, bundle: Bundle, *, cache: bool, threads: int | None, move: Callable[[Any], object] = lambda _: None
    ) -> None:
        self.bundle, self.threads, self.lock = bundle, threads, RLock()
        self._owner_moves = move
        self._resident: SessionLru | None = None
        self._cache = cache
        self._prepacked: Prepacked | None = None
        self._tables: dict[str, dict[Any, Any]] = {}
        self._by_structure: dict[bytes, TaskSession] = self.table("shared")
        self._sole_of_structure: dict[bytes, weakref.ref[ort.InferenceSession]] = {}  # of one task each
        self._closed = False

    def table(self, name: str) -> dict[Any, Any]:
        """Make an empty table of what runs on sessions (``runs_on``), in place of the last one of that name.

        Any thread may take from it, or find that something is gone and open it again.
        """
        self._tables[name] = {}
        return self._tables[name]

    def drop(self, session: object) -> None:
        """Take what runs on a session out of all tables."""
        for table in self._tables.values():
            for key, each in list(table.items()):
                if each.runs_on(session):
                    table.pop(key, None)

    def check_open(self) -> None:
        """Refuse to go on once the pool is closed."""
        if self._closed:
            raise UsageError(f"the runtime of {self.bundle.folder} is closed; open another one.")

    def prepare(self) -> None:
        """Find or build the prepacked weights; where that fails, warn once and use the bundle's own.

        It comes before any graph is read: prepared weights know which files were hashed before.
        """
        self.check_open()
        if not self._cache or self._prepacked is not None:
            return
        try:
            self._prepacked = hold_prepacked(self.bundle)
        except (BundleError, UsageError):
            raise
        except (OSError, EdgepeftError) as error:
            self._cache = False
            warnings.warn(
                f"the weights are not shared between tasks: no prepacked copy can be kept ({error}). EDGEPEFT_CACHE "
                "names another folder for it; --no-cache does without.",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.bundle.known_weights = self._prepacked.seen()

    @property
    def one_row(self) -> bool:
        """True if a single row is quicker on a graph of its own, by the cache's trial on this processor."""
        return self._prepacked is None or self._prepacked.one_row

    def open(self, model: onnx.ModelProto, *, one_row: bool = False) -> TaskSession:
        """Open a session on a task's graph, which is changed; tasks of one structure share one from the second on.

        ``one_row``: it is a graph of ``for_one_row``.
        """
        with self.lock:
            self.prepare()
            session = self._open_or_share(model, one_row)
            return_free_memory()
            return session

    def _open_or_share(self, model: onnx.ModelProto, one_row: bool) -> TaskSession:
        if self._prepacked is not None:
            join(model, self.bundle, self._prepacked.tensors)
        task = structure_and_values(model)
        if task is None:
            return self.open_graph(model, one_row=one_row)
        rows = None
        if task.feeds and any(value.name == PLACE for value in model.graph.input):  # of a decoder alone, lowered
            from edgepeft.graph.by_row import by_row
            from edgepeft.graph.joined import join_updates

            rows = by_row(*join_updates(*task))
        task = rows or task
        structure = hashlib.sha256(task.structure.SerializeToString(deterministic=True)).digest()
        opened = self._by_structure.get(structure)
        if opened is None:
            first = self._sole_of_structure.pop(structure, lambda: None)()
            if first is None and rows is None:
                # It keeps its values as constants: fed matrices are packed in each run (1.5 to 3 % at 16 tokens).
                session = self.open_graph(model, one_row=one_row).shared
                self._sole_of_structure[structure] = weakref.ref(session)
                return TaskSession(session, {}, structure, self.used)
            opened = self._by_structure[structure] = self.open_graph(task.structure, one_row=one_row)
            if first is not None:
                self._owner_moves(first)
        return TaskSession(opened.shared, task.feeds, structure, self.used, rows is not None)

    def open_graph(self, model: onnx.ModelProto, *, one_row: bool = False) -> TaskSession:
        """Open a session of its own on a graph over the bundle's weights; the graph is changed in place."""
        self.check_open()
        if self._resident is None:
            self._resident = SessionLru(most_sessions(len(self.bundle.backbone_graph.graph.initializer)), self.drop)
        self._resident.make_room()
        session = self._open(model, one_row)
        self._resident.add(session)
        return TaskSession(session, {}, None, self.used)

    def used(self, session: ort.InferenceSession) -> None:
        """Note that a session of ``open_graph`` runs: the others were used less recently."""
        if self._resident is not None:
            self._resident.used(session)

    def _open(self, model: onnx.ModelProto, one_row: bool) -> ort.InferenceSession:
        _ = self.bundle.checkpoint  # still the one that is known
        if self._prepacked is not None and not self._prepacked.folder.exists():  # someone has emptied the cache
            self._prepacked.close()
            self._prepacked = None
            self.prepare()
        how: dict[str, Any] = {"external_data": [*self.bundle.external_data(model)], "one_row": one_row}
        if self._prepacked is None:
            place_joined(model, self.bundle)  # of an entry that is gone since
            return open_session(model, self.bundle.folder, self.threads, **how)
        # What was hashed, not what lies there now: somebody may have replaced it since.
        expected = self.bundle.manifest.backbone.sha256.weights
        hashed = frozenset(identity for identity, sha256 in self.bundle.sound_weights if sha256 == expected)
        if new := hashed - self._prepacked.seen():
            with contextlib.suppress(OSError, EdgepeftError):  # a folder that cannot be written: hashed again next time
                self._prepacked.remember(new)
        place(model, self.bundle, self._prepacked.tensors)
        session = open_session(model, self._prepacked.folder, self.threads, **how)
        self._prepacked.drop_scales()
        return session

    def close(self) -> None:
        """Let the sessions and the cache's entry go; runs that are under way end first."""
        self._closed = True
        for table in self._tables.values():
            table.clear()
        self._sole_of_structure.clear()
        if self._prepacked is not None:
            self._prepacked.close()
            self._prepacked = None

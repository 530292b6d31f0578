"""Running the tasks of a bundle on texts: one tokenizer, one weights file, a spliced session per task."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Generator as Generates
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.graph.names import LOGITS
from edgepeft.graph.one_row import for_one_row
from edgepeft.runtime.decoding import GREEDY, Decoding, Written
from edgepeft.runtime.inputs import (
    Inputs,
    Readable,
    Tokenizing,
    as_list,
    checked_inputs,
    is_frame,
    pad_to,
    passes,
    read_for_kind,
    unpadded_row,
    write_rows,
)
from edgepeft.runtime.prediction import (
    Frame,
    answered_frame,
    predictions,
    require_finite,
    require_width,
    text_answers,
    warn_once,
)
from edgepeft.runtime.session import opening, run_session
from edgepeft.runtime.session_pool import LOWER_LAYERS, SessionPool, TaskSession
from edgepeft.tasks._answers import Answer, Prediction
from edgepeft.tasks.base import TaskType

if TYPE_CHECKING:
    from edgepeft.options.base import Folder
    from edgepeft.runtime.generation import Generator, TextSession
    from edgepeft.runtime.mixed import LowerLayers, Mixer
    from edgepeft.runtime.prediction import RowResult, TextAnswer
    from edgepeft.runtime.text_generation import TextBatch


class Runtime:
    """An opened bundle that answers; sessions open with the first request to their task.

    ``threads`` caps the intra-op threads; None takes what affinity and quota allow.  ``cache`` lets all sessions
    map one prepacked copy of the weights, kept in the user's cache.  Several threads may use one runtime;
    ``with Runtime(folder) as runtime`` closes it.
    """

    def __init__(self, folder: Folder, *, threads: int | None = None, cache: bool = True) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise UsageError(f"{folder!r:.80} is no folder; give the path of a bundle's.")
        if threads is not None and (not isinstance(threads, int | np.integer) or threads < 1):
            raise UsageError(f"threads is {threads!r:.80}; 1 is the least whole number, and None what the host allows.")
        self.bundle = Bundle(folder)
        self.threads = threads
        self._pool = SessionPool(self.bundle, cache=cache, threads=threads, move=self._move)
        self._lock = self._pool.lock
        self._sessions: dict[str | None, TaskSession] = self._pool.table("tasks")
        # For a batch of one row, each opened with the first such.
        self._one_row: dict[str | None, TaskSession] = self._pool.table("one row")
        self._tokenizing = Tokenizing(self.bundle, self._lock)
        self.truncation = self._tokenizing.truncation
        self._mixed: Mixer | None = None
        self._noted: set[tuple[str, str]] = set()
        self._begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sessions; runs that are under way end first."""
        with self._lock:
            self._pool.close()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The bundle's tasks, by name."""
        return tuple(self.bundle.manifest.tasks)

    def reload(self) -> tuple[str, ...]:
        """Read the manifest again and close what changed in it; returns the tasks that are new, replaced or gone.

        Raises:
            UsageError: the runtime was closed, or the folder now holds another backbone or tokenizer.
        """
        with self._lock:
            self._pool.check_open()
            before, now = self.bundle.manifest, Manifest.read(self.bundle.folder)
            if (now.backbone, now.files) != (before.backbone, before.files):
                holds = f"{self.bundle.folder} now holds another tokenizer or another backbone"
                raise UsageError(f"{holds}; open the bundle again.")
            changed = [n for n in {**before.tasks, **now.tasks} if before.tasks.get(n) != now.tasks.get(n)]
            # With what was read of the backbone: its folder may not be there any more.
            self.bundle = self._pool.bundle = bundle = copy(self.bundle)
            bundle.manifest = now
            for name in changed:
                self._sessions.pop(name, None)
                self._one_row.pop(name, None)
            if changed:
                self._begin_anew()
            return tuple(changed)

    def _begin_anew(self) -> None:
        """With the bundle's tasks as they are now; runs that are under way keep the old ones."""
        self._generator: Generator | None = None
        self._lower_layers: LowerLayers | None = None
        self._texts: dict[str | None, TextSession] = self._pool.table("text")
        self._pool.table(LOWER_LAYERS)  # empty, so that what ran on the old tasks' sessions is let go

    # What few programs need is loaded with its first use.
    @property
    def generator(self) -> Generator:
        """Writes the tasks' texts."""
        from edgepeft.runtime.generation import Generator

        with self._lock:
            how = self.bundle, self._pool.open, self._tokenizing.leading, self._texts
            self._generator = self._generator or Generator(*how)
            return self._generator

    @property
    def mixer(self) -> Mixer:
        """Runs rows of several tasks together."""
        from edgepeft.runtime.mixed import Mixer

        with self._lock:
            self._mixed = self._mixed or Mixer(self)
            return self._mixed

    def session(self, task: str | None) -> TaskSession:
        """The session of a task, or of the bare backbone for None.

        Raises:
            UnknownName: no such task.
            BundleError: a file is damaged, foreign, or was replaced since the bundle was opened.
            UsageError: the runtime was closed.
        """
        with self._lock:
            self._pool.prepare()
            if task not in self._sessions:
                with opening(task):
                    self._sessions[task] = self._pool.open(self.bundle.graph(task))
            return self._sessions[task]

    def prepare(self, task: str | None) -> TaskSession | TextSession:
        """Open what answers a task's rows, or the bare backbone for None; raises as ``session``."""
        if task is None or not self.bundle.entry(task).writes:
            return self.session(task)
        with self._lock, opening(task):
            self._pool.prepare()
            return self.generator.session(task)

    def structure(self, task: str | None) -> bytes | None:
        """Equal for tasks whose rows ``predict_mixed`` runs together; None until the task's session is open."""
        session = self._sessions.get(task) or self._texts.get(task)
        entry = self.bundle.manifest.tasks.get(task or "")
        return None if session is None or (entry is not None and entry.scores_words) else session.structure

    def _move(self, session: object) -> None:
        """Open the tasks of this session again, now that a second one of their structure shares another with them."""
        moved = {task: each for task, each in self._sessions.items() if each.runs_on(session)}
        self._pool.drop(session)
        self._sessions.update(moved)  # a task whose file was replaced since goes on answering by the open session
        for task in moved:
            with contextlib.suppress(EdgepeftError):
                self._sessions[task] = self._pool.open(self.bundle.graph(task))

    def logits(self, task: str, inputs: Inputs) -> NDArray[np.float32]:
        """A task's raw outputs, [batch, outputs] in the order of the rows; [0, outputs] for no rows.  Of a task that
        tags tokens [batch, length, outputs], 0 where there is no token.

        ``inputs`` are int64 [batch, length], as Hugging Face's tokenizers give them: ``input_ids``, ``attention_mask``
        (0 for padding, on any side) and, where the backbone has token types, ``token_type_ids``.  Others are ignored.

        Raises:
            UnknownName: no such task.
            DataError: an input is missing, is not int64 or has another shape than the rest; an id is outside of the
                vocabulary; a row has no token.
            BundleError: a file is damaged; ONNX Runtime stops within the model, as for rows longer than it takes.
        """
        entry = self.bundle.entry(task)
        batch = checked_inputs(inputs, self.bundle.architecture)
        if entry.scores_words:
            from edgepeft.runtime.label_words import word_scores

            self.prepare(task)
            with self._lock:  # a reload changes both
                entry, generator = self.bundle.entry(task), self.generator
            return word_scores(generator, task, batch, self._tokenizing.trie(entry))
        shape = entry.task_kind.logits_shape(*batch["input_ids"].shape)
        return self._output(task, LOGITS, batch, shape, entry.prompt_length)

    def last_hidden_state(self, inputs: Inputs) -> NDArray[np.float32]:
        """[batch, length, hidden size] of the bare backbone, zero where there is no token; else as ``logits``."""
        batch = checked_inputs(inputs, self.bundle.architecture)
        shape = (*batch["input_ids"].shape, self.bundle.architecture.hidden_size)
        return self._output(None, "last_hidden_state", batch, shape)

    def _output(
        self, task: str | None, output: str, inputs: Inputs, shape: tuple[int, ...], prompt: int = 0
    ) -> NDArray[np.float32]:
        """An output of that shape: a single row runs without the padding at its end, several in passes."""
        if (whole := unpadded_row(inputs)) is not None:
            found = run_session(self._session_of_one_row(task), output, whole)
            return pad_to(shape, require_width(shape[-1], task, found))
        values = np.zeros(shape, np.float32)
        for rows, part in passes(inputs, prompt=prompt):
            write_rows(values, rows, require_width(shape[-1], task, run_session(self.session(task), output, part)))
        return values

    def _session_of_one_row(self, task: str | None) -> TaskSession:
        """A task's session for a row without padding, by the graph quickest for it."""
        session = self._one_row.get(task)  # another thread may close it at any time
        if session is not None:
            return session
        with self._lock:
            self._pool.prepare()
            try:
                with opening(task):
                    model = self.bundle.graph(task)
                    own = self._pool.one_row and for_one_row(model)
                    session = self._pool.open(model, one_row=True) if own else self.session(task)
            except EdgepeftError as error:  # above all, its file was replaced since
                if task not in self._sessions:
                    raise
                session = self._sessions[task]
                said = f"a text alone is answered by the session of batches, for its own cannot be opened: {error}"
                warnings.warn(f"{said} Open the bundle again.", RuntimeWarning, stacklevel=2)
            self._one_row[task] = session
            return session

    @overload
    def predict(self, task: str, texts: str | Sequence[Readable]) -> list[Prediction]: ...

    @overload
    def predict(self, task: str, texts: Frame) -> Frame: ...

    def predict(self, task: str, texts: Any) -> Any:
        """One answer for each text, pair or row of columns, in order; what is longer is cut, counted in ``truncation``.

        Of a DataFrame of pandas or polars a new one, with the answers' columns beside its own.

        Raises:
            UnknownName, BundleError: as ``session``.
            BundleError: an answer is NaN or infinite, too.
            UsageError: the task writes text.
            DataError: something that is neither text nor pair; a column is missing.
        """
        if is_frame(texts):
            return answered_frame(self, task, texts)
        return require_finite(self._predictions(task, texts))

    def _predictions(self, task: str, texts: str | Sequence[Readable]) -> list[Prediction]:
        entry = self.bundle.entry(task)
        read = read_for_kind(entry.task_kind, texts, entry.source)
        if not read.given:
            return []
        batch = self._tokenizing.tokens(read.texts, entry.max_length, entry.task_kind)
        return warn_once(predictions(task, entry, read, self._logits_of(task, entry, batch), batch), self._noted)

    def _logits_of(self, task: str, entry: TaskEntry, batch: TokenBatch) -> NDArray[np.float32]:
        """``logits`` of tokens that are our own: of a row alone only what the tokenizer may be wrong in is checked."""
        ids = batch.inputs["input_ids"]
        plain = len(ids) == 1 and 0 <= max(ids[0].tolist(), default=-1) < self.bundle.architecture.vocab_size
        if not plain or entry.scores_words:
            return self.logits(task, batch.inputs)
        shape = entry.task_kind.logits_shape(*ids.shape)
        found = run_session(self._session_of_one_row(task), LOGITS, batch.inputs)
        return pad_to(shape, require_width(shape[-1], task, found))

    def predict_all(
        self, tasks: Sequence[str], texts: str | Sequence[Readable], decoding: Decoding = GREEDY
    ) -> dict[str, Sequence[Answer]]:
        """The answers of several tasks on the same texts, by task; layers that several leave alone run once.

        ``decoding`` is for those that write text.
        """
        given = as_list(texts)
        answers: dict[str, Sequence[Answer]] = {task: [] for task in tasks}
        forms: dict[tuple[int, str | None, type[TaskType] | None, int | None], list[str]] = {}
        for task, entry in ((task, self.bundle.entry(task)) for task in answers if given):
            if entry.scores_words:
                answers[task] = require_finite(self._predictions(task, given))
            elif entry.writes:
                answers[task] = self.write(task, given, decoding)
            else:
                kind = entry.task_kind
                own = type(kind) if kind.several_texts or kind.windows else None
                shared = kind.overlap(entry.max_length) if kind.windows else None
                forms.setdefault((entry.max_length, entry.source, own, shared), []).append(task)
        for (max_length, source, *_), alike in forms.items():
            kind = self.bundle.entry(alike[0]).task_kind
            read = read_for_kind(kind, given, source)
            batch = self._tokenizing.tokens(read.texts, max_length, kind, answers=len(alike))
            logits = self._logits_of_all(alike, batch.inputs)
            for task in alike:
                of_task = warn_once(predictions(task, self.bundle.entry(task), read, logits[task], batch), self._noted)
                answers[task] = require_finite(of_task)
        return answers

    def _logits_of_all(self, tasks: Sequence[str], inputs: Inputs) -> dict[str, NDArray[np.float32]]:
        if len(tasks) == 1:
            return {tasks[0]: self.logits(tasks[0], inputs)}
        from edgepeft.runtime.mixed import LowerLayers

        with self._lock:
            self._pool.prepare()
            lower = self._lower_layers = self._lower_layers or LowerLayers(self._pool)
            plan = lower.plan(tasks)
        shared = lower.logits(plan, inputs) if plan.shared else {}
        return {**shared, **{task: self.logits(task, inputs) for task in plan.whole}}

    def predict_mixed(
        self,
        tasks: Sequence[str | None],
        texts: Sequence[Readable],
        *,
        strict: bool = True,
        pooling: Pooling = Pooling.MEAN,
        decoding: Decoding = GREEDY,
    ) -> list[RowResult]:
        """The answer of ``tasks[i]`` to ``texts[i]``, in order; rows of tasks of one structure share their passes.

        Text is written as ``decoding`` says, with several beams each task's alone.  A row whose task is None gets the
        bare backbone's embedding [hidden size], pooled as ``pooling`` says.
        Unless ``strict``, a row whose task is unknown or damaged, or gives no number, gets the error in its place.

        Raises:
            UsageError: not as many tasks as texts, or an embedding pooled as labels.
            UnknownName, BundleError: as ``session``.
        """
        given = list(tasks), as_list(texts)  # of a Series an index would be a label
        return self.mixer.answers(*given, strict=strict, pooling=pooling, decoding=decoding)

    def write(self, task: str, texts: str | Sequence[Readable], decoding: Decoding = GREEDY) -> list[TextAnswer]:
        """What a task writes for each text or pair, in order; longer ones are cut, and counted in ``truncation``."""
        read, inputs = self._read(task, texts)
        return self._written(task, read, self.generator.write(task, inputs, decoding))

    def _written(self, task: str, texts: Sequence[Text], written: Sequence[Written]) -> list[TextAnswer]:
        self.truncation.texts += sum(not one.ended for one in written)
        answers = text_answers(task, self.bundle.entry(task), texts, written, self._tokenizing.encoder())
        return warn_once(answers, self._noted)

    def writing(self, decoding: Decoding = GREEDY) -> TextBatch:
        """A batch that texts of tasks which write text, of one structure, join and leave while it goes on, greedily."""
        from edgepeft.runtime.text_generation import TextBatch

        return TextBatch(self, decoding)

    def stream(self, task: str, text: Readable, decoding: Decoding = GREEDY) -> Generates[str, None, TextAnswer]:
        """What a task writes for one text, as it comes, in whole characters, or none yet; returns the whole answer."""
        return (yield from self.writing(decoding).stream(task, text))

    def _read(self, task: str, texts: object) -> tuple[list[Text], Inputs]:
        """Read and tokenize texts for a task that writes text, and open the task."""
        entry = self.bundle.entry(task)
        if not entry.task_kind.writes:
            raise UsageError(f"task {task} writes no text; ask it with predict.")
        read = self._tokenizing.read_and_tokenize(texts, entry.max_length, entry.source)
        self.prepare(task)
        return read

    def n_tokens(self, task: str, texts: Sequence[str]) -> int:
        """How many tokens the task reads of these texts: of cut ones as far as it does, of others in all windows."""
        return self._tokenizing.count(texts, self.bundle.entry(task))

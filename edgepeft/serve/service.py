"""The bundle that is served: opened, answered from, and opened again when its files change.

``answer`` is called by as many threads as batches run at once; ``warm`` and ``reload`` while none does.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

from edgepeft.bundle.manifest import MANIFEST_FILE, Manifest
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.common.resources import file_identity
from edgepeft.deploy.signature import SIGNATURE_FILE, check_signature
from edgepeft.runtime.inputs import Readable
from edgepeft.runtime.prediction import RowResult
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.text_generation import Draft, TextBatch
from edgepeft.serve.batcher import QueuedRequest
from edgepeft.serve.settings import Settings
from edgepeft.serve.trial import Trials

log = logging.getLogger("edgepeft.serve")


class Service:
    """A runtime that is kept up to date."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Without the cache both processes would hold the weights at once, which a board may have no memory for.
        limits = settings.limits
        self._trials = (
            Trials(settings.bundle, settings.threads_of_a_batch, limits.trial_s) if not settings.no_cache else None
        )
        self._seen = self._identity()
        self.runtime = self._open()
        self._truncated_before = 0  # by runtimes that were replaced
        # Many answer at once, a batch in each place, or one reads the bundle again: labels and sessions stay alike.
        self._places, self._reading = threading.Semaphore(settings.workers), threading.Lock()

    def _open(self) -> Runtime:
        self._check_signature()
        settings = self._settings
        return Runtime(settings.bundle, threads=settings.threads_of_a_batch, cache=not settings.no_cache)

    def _check_signature(self) -> None:
        if self._settings.require_signature is not None:
            check_signature(self._settings.bundle, self._settings.require_signature)

    def _identity(self) -> tuple[str, ...]:
        """Changes whenever the manifest or its signature is replaced."""
        folder = Path(self._settings.bundle)
        return tuple(file_identity(folder / name) for name in (MANIFEST_FILE, SIGNATURE_FILE))

    @property
    def manifest(self) -> Manifest:
        """The manifest of what is served now."""
        return self.runtime.bundle.manifest

    @property
    def changed(self) -> bool:
        """Whether the files are others than those that were last looked at; from any thread."""
        return self._identity() != self._seen

    @property
    def truncated_rows(self) -> int:
        """Answers that read a text cut to its task's maximal length."""
        return self._truncated_before + self.runtime.truncation.rows

    def untried(self, task: str | None) -> bool:
        """Whether it is still being found out, in a process of its own, if the task may be opened; from any thread."""
        return self._trials is not None and self._trials.untried(self.runtime.bundle, task)

    def overdue(self, since: float) -> bool:
        """Whether trials have had their time since then, by ``time.monotonic``."""
        return self._trials is None or self._trials.overdue(since)

    def warm(self, task: str) -> None:
        """Open a task's session and the tokenizer before somebody waits for them; nothing where the task is gone."""
        if task in self.runtime.tasks:
            for error in self._problems([task]).values():
                raise error
            self.runtime.prepare(task)
            self.runtime.n_tokens(task, [])
            _ = self.runtime.mixer  # which every request passes through, and which loads modules

    def reload(self) -> tuple[str, ...]:
        """Take over what changed in the folder; the tasks that are new, replaced or gone."""
        self._seen = self._identity()
        self._check_signature()
        before = self.manifest
        try:
            return self.runtime.reload()
        except UsageError:  # another backbone or tokenizer
            replaced, self.runtime = self.runtime, self._open()
            self._truncated_before += replaced.truncation.rows
            replaced.close()
            return tuple({**before.tasks, **self.manifest.tasks})

    def kind(self, task: str | None) -> Hashable:
        """Equal for tasks whose rows share their passes."""
        return self.runtime.structure(task) or task

    def writes(self, task: str | None) -> bool:
        """Whether it is a task that writes text."""
        return task in self.manifest.tasks and self.manifest.tasks[task].task_kind.writes

    def write(self, jobs: Sequence[QueuedRequest], more: Callable[[], Sequence[QueuedRequest]]) -> None:
        """Write the texts of requests, and of those that join them; what cannot join is left to ``answer``."""
        with self._place():
            Written(self.runtime.writing(), self._problems).run(jobs, more)

    def answer(self, tasks: Sequence[str | None], texts: Sequence[Readable]) -> list[RowResult]:
        """The answer of each row, or the error in its place."""
        failure: EdgepeftError | None = None
        with self._place():
            seen = self._seen
            try:
                answers = self._predict(tasks, texts)
            except EdgepeftError as error:
                failure, answers = error, [error] * len(tasks)
        failed = [row for row, answer in enumerate(answers) if isinstance(answer, EdgepeftError)]
        if failed and self._caught_up(seen):
            with self._place():
                again = self._predict([tasks[row] for row in failed], [texts[row] for row in failed])
            for row, answer in zip(failed, again, strict=True):
                answers[row] = answer
        elif failure is not None:
            raise failure
        return answers

    def _problems(self, tasks: Sequence[str | None]) -> dict[str | None, BundleError]:
        if self._trials is None:
            return {}
        found = {task: self._trials.problem(self.runtime.bundle, task) for task in dict.fromkeys(tasks)}
        return {task: problem for task, problem in found.items() if problem is not None}

    def _predict(self, tasks: Sequence[str | None], texts: Sequence[Readable]) -> list[RowResult]:
        """Answer as ``Runtime.predict_mixed`` does; a task that did not pass its trial is not opened here."""
        problems = self._problems(tasks)
        if not problems:
            return self.runtime.predict_mixed(tasks, texts, strict=False)
        rows = [row for row, task in enumerate(tasks) if task not in problems]
        answers = self.runtime.predict_mixed([tasks[row] for row in rows], [texts[row] for row in rows], strict=False)
        answered = dict(zip(rows, answers, strict=True))
        return [answered[row] if row in answered else problems[task] for row, task in enumerate(tasks)]

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Answer within the block, behind whoever waits to read the bundle again."""
        with self._reading:
            self._places.acquire()
        try:
            yield
        finally:
            self._places.release()

    def _caught_up(self, seen: tuple[str, ...]) -> bool:
        """Whether a failure may be that of files replaced after ``seen``, which are read now."""
        with self._reading, contextlib.ExitStack() as places:
            for _ in range(self._settings.workers):
                places.enter_context(self._places)
            if not self.changed:
                return self._seen != seen  # another batch's failure has had them read
            try:
                self.reload()
            except Exception as error:  # whatever the files are, what was open goes on answering
                log.error("the bundle cannot be read again: %s", error)
                return False
            return True

    def close(self) -> None:
        """Close the sessions; trials end."""
        if self._trials is not None:
            self._trials.close()
        self.runtime.close()


class Written:
    """Texts written token by token; requests join and leave, but those of tasks with ``problems``."""

    def __init__(
        self, batch: TextBatch, problems: Callable[[Sequence[str | None]], Mapping[str | None, BundleError]]
    ) -> None:
        self._batch, self._problems = batch, problems
        self._drafts: dict[QueuedRequest, list[Draft]] = {}

    def run(self, jobs: Sequence[QueuedRequest], more: Callable[[], Sequence[QueuedRequest]]) -> None:
        """Answer these requests, and those that ``more`` gives before each step, but for what cannot join."""
        for job in jobs:
            self._join(job)
        while self._drafts:
            self._batch.step()
            for job, drafts in list(self._drafts.items()):
                self._tell(job, drafts)
            for job in more():
                self._join(job)

    def _join(self, job: QueuedRequest) -> None:
        """Rows of a task whose files fail are left out with all of their request, which is answered another way."""
        drafts: list[Draft] = []
        try:
            for problem in self._problems(job.tasks).values():
                raise problem
            for task, text in zip(job.tasks, job.texts, strict=True):
                drafts += self._batch.add(task or "", [text], job.most, job.schema)
            self._drafts[job] = drafts
        except BundleError as error:
            self._batch.drop(drafts)
            if job.schema is not None:  # the other way knows of none
                job.give(error)
        except EdgepeftError as error:
            self._batch.drop(drafts)
            job.give(error)

    def _tell(self, job: QueuedRequest, drafts: list[Draft]) -> None:
        if not job.left:  # whoever asked is gone, or waited for too long
            self._batch.drop(drafts)
            del self._drafts[job]
            return
        if job.tell is not None:
            job.say("".join(map(self._batch.piece, drafts)))
        if all(draft.done for draft in drafts):
            job.give([draft.error or self._batch.answer(draft) for draft in drafts])
            del self._drafts[job]

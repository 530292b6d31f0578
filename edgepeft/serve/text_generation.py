"""Requests to tasks that write text: they join a batch that goes on token by token, and leave it one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.runtime.text_generation import Draft, TextBatch
from edgepeft.serve.job import Job

__all__ = ["Written"]


class Written:
    """A batch with the requests whose rows are in it; ``problems`` says which tasks are not to be opened."""

    def __init__(
        self, batch: TextBatch, problems: Callable[[Sequence[str | None]], Mapping[str | None, BundleError]]
    ) -> None:
        self._batch, self._problems = batch, problems
        self._drafts: dict[Job, list[Draft]] = {}

    def run(self, jobs: Sequence[Job], more: Callable[[], Sequence[Job]]) -> None:
        """Answer these requests, and those that ``more`` gives before each step, but for what cannot join.

        Raises:
            EdgepeftError: as ``TextBatch.step``.
        """
        for job in jobs:
            self._join(job)
        while self._drafts:
            self._batch.step()
            for job, drafts in list(self._drafts.items()):
                self._tell(job, drafts)
            for job in more():
                self._join(job)

    def _join(self, job: Job) -> None:
        """Rows of a task whose files fail are left out with all of their request, which is answered another way."""
        drafts: list[Draft] = []
        try:
            if not self._problems(job.tasks):
                for task, text in zip(job.tasks, job.texts, strict=True):
                    drafts += self._batch.add(task or "", [text])
                self._drafts[job] = drafts
        except BundleError:
            self._batch.drop(drafts)
        except EdgepeftError as error:
            self._batch.drop(drafts)
            job.give(error)

    def _tell(self, job: Job, drafts: list[Draft]) -> None:
        if not job.left:  # whoever asked is gone, or waited for too long
            self._batch.drop(drafts)
            del self._drafts[job]
            return
        if job.tell is not None:
            job.say("".join(map(self._batch.piece, drafts)))
        if all(draft.done for draft in drafts):
            job.give([self._batch.answer(draft) for draft in drafts])
            del self._drafts[job]

"""What a board took up of a fleet: ``.fleet/state.json`` in the bundle.

A task is the fleet's where its graph is one that was taken up; any other was tuned or added on the board.  The next
version is noted before the commit and confirmed after it, so a power cut leaves at worst a note, which the next pull
settles.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from edgepeft.bundle.manifest import FileHash
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, UsageError

__all__ = ["WORK", "State", "held"]

WORK = ".fleet"  # in the bundle's folder: trusted metadata, this state, downloads
_FILE = "state.json"
_MOST_KNOWN = 50  # versions of a task: an older one counts as the board's own


class State(BaseModel):
    """SHA-256 of tasks' graphs: ``taken`` last, by task; ``known``, all that ever came; ``pending``, being committed;
    ``leaving``, being removed as withdrawn.

    ``refused`` are those that failed here, with the reason; ``under`` says on what, for elsewhere they may pass.
    """

    model_config = ConfigDict(extra="ignore")

    format: Literal["edgepeft.fleet/1"] = "edgepeft.fleet/1"
    taken: dict[str, FileHash] = {}
    known: dict[str, list[FileHash]] = {}
    pending: dict[str, FileHash] = {}
    leaving: list[str] = []
    refused: dict[str, str] = {}
    under: str = ""

    @classmethod
    def read(cls, work: Path, present: Mapping[str, str]) -> State:
        """The state, a commit that was cut short settled by what is ``present``: a graph's SHA-256 by task.

        Raises:
            BundleError: the file is damaged.
        """
        path = work / _FILE
        try:
            state = cls.model_validate_json(path.read_bytes()) if path.is_file() else cls()
        except ValidationError as error:
            raise BundleError(
                f"{path} is damaged. Remove it: then every task that is not as published counts as this board's own."
            ) from error
        done = {task: sha256 for task, sha256 in state.pending.items() if present.get(task) == sha256}
        state.confirm(done, {task for task in state.leaving if task not in present})
        return state

    @staticmethod
    def exists(work: Path) -> bool:
        """Whether something was taken up here before."""
        return (work / _FILE).is_file()

    def write(self, work: Path) -> None:
        """Replace the file."""
        write_json(work / _FILE, self.model_dump())

    def judge_anew_elsewhere(self, here: str) -> None:
        """Forget what was refused under other circumstances than those that ``here`` stands for."""
        if here != self.under:
            self.under, self.refused = here, {}

    def note(self, sha256s: Mapping[str, str], leaving: Iterable[str] = ()) -> None:
        """Versions that are about to be committed, and withdrawn tasks that are about to be removed."""
        self.pending, self.leaving = dict(sha256s), list(leaving)
        self._know(sha256s)

    def confirm(self, sha256s: Mapping[str, str], gone: set[str]) -> None:
        """They are in force, and tasks that are gone need no memory."""
        self.pending, self.leaving = {}, []
        self._know(sha256s)
        self.taken = {task: sha256 for task, sha256 in {**self.taken, **sha256s}.items() if task not in gone}
        self.known = {task: known for task, known in self.known.items() if task not in gone}

    def _know(self, sha256s: Mapping[str, str]) -> None:
        for task, sha256 in sha256s.items():
            known = self.known.get(task, [])
            self.known[task] = known if sha256 in known else [*known, sha256][-_MOST_KNOWN:]


@contextlib.contextmanager
def held(work: Path, bundle: Path) -> Iterator[None]:
    """Keep other pulls out; what a dead process held is free.

    Raises:
        UsageError: another pull is under way.
    """
    import fcntl

    descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"another process is pulling into {bundle}; wait for it, or end it.") from None
    try:
        yield
    finally:
        os.close(descriptor)

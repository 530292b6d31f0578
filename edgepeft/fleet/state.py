"""What a board took up of a fleet, ``.fleet/state.json`` in the bundle, and what a pull therefore does with each task.

A task is the fleet's where its graph is one that was taken up; any other was tuned or added on the board.  The next
version is noted before the commit and confirmed after it, so a power cut leaves at worst a note, which the next pull
settles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from edgepeft.bundle.manifest import FileHash
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError

WORK = ".fleet"  # in the bundle's folder: trusted metadata, this state, downloads
STATE_FILE = "state.json"
_MAX_KNOWN = 50  # versions of a task: an older one counts as the board's own


class State(BaseModel):
    """Digests of tasks: ``taken`` last, by task; ``known``, all that ever came; ``pending``, being committed;
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
        """The state, a commit that was cut short settled by what is ``present``: digests by task."""
        path = work / STATE_FILE
        try:
            state = cls.model_validate_json(path.read_bytes()) if path.is_file() else cls()
        except ValidationError as error:
            raise BundleError(
                f"{path} is damaged. Remove it: then every task that is not as published counts as this board's own."
            ) from error
        done = {task: found for task, found in state.pending.items() if present.get(task) == found}
        state.confirm(done, {task for task in state.leaving if task not in present})
        return state

    def write(self, work: Path) -> None:
        """Replace the file."""
        write_json(work / STATE_FILE, self.model_dump())

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
            self.known[task] = known if sha256 in known else [*known, sha256][-_MAX_KNOWN:]


@dataclass(frozen=True)
class Decision:
    """Tasks to take up and to remove, and those that stay as they are here, with the reason."""

    take: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict)


def decide(published: Mapping[str, str], here: Mapping[str, str], state: State, *, replace: bool) -> Decision:
    """What a pull does with each task; ``published`` and ``here`` are digests by task.

        published   here             last taken up    then
        B           nothing          not B            take B
        B           B                any              nothing
        B           A, the fleet's   not B            take B
        B           A, the fleet's   B                keep: rolled back here
        B           nothing          B                keep: removed here
        B           C, its own       any              keep: tuned or added here
        nothing     A, the fleet's   any              remove: withdrawn
        nothing     C, its own       A                keep: withdrawn, but tuned here

    ``replace`` turns each keep into what is published.
    """
    take, remove, keep = [], [], {}
    for task in sorted({*published, *here}):
        offered, own, last = published.get(task), here.get(task), state.taken.get(task)
        fleets = own in state.known.get(task, []) or own == last
        if offered == own:
            continue
        if offered is None:
            if fleets or (last is not None and replace):
                remove.append(task)
            elif last is not None:
                keep[task] = "withdrawn by the publisher, and tuned on this board"
        elif replace or (last != offered and (own is None or fleets)):
            take.append(task)
        elif own is None:
            keep[task] = "removed on this board"
        else:
            keep[task] = "rolled back on this board" if fleets else "tuned or added on this board"
    return Decision(tuple(take), tuple(remove), keep)

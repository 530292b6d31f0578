"""A bundle replaced as a whole, where more than its tasks changed: made beside the old one, checked, exchanged.

What is unchanged is linked, not fetched.  Tasks that this board tuned come along where they still give what they gave.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tuf.api.metadata import TargetFile

from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.bundle.versions import Content, content_of, digest, read_version
from edgepeft.common.atomic import new_folder, refuse_mount_point
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.common.own_folder import locked
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import CHECK, GRAPH, WEIGHTS
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.deploy.install import PreparedTask, commit_tasks, prepare_task
from edgepeft.fleet.layout import METADATA, Published, places
from edgepeft.fleet.state import WORK, State

Stage = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Replacement:
    """What is published in the place of ``folder``, which holds the manifest ``here``; tasks in ``own`` come along, and
    what ``work``, its folder of a fleet, says of trust."""

    folder: Path
    work: Path
    published: Published
    here: Manifest | None
    own: tuple[str, ...]
    fetch: Callable[[Iterable[TargetFile]], Mapping[str, Path]]
    stage: Stage

    def put(self, state: State) -> list[str]:
        """Do it; the published tasks that are in force."""
        refuse_mount_point(self.folder)
        with contextlib.ExitStack() as claims, contextlib.ExitStack() as lock:
            for task in () if self.here is None else self.here.tasks:
                claims.enter_context(claim(self.folder, task))
            files = self._files()
            # Behind a link, which stays as it is, and for the same users.
            with new_folder(self.folder.resolve(), force=True) as fresh:
                shutil.copymode(self.folder, fresh)
                taken = self._fill(fresh, files)
                self._remember(fresh, state, taken)
                lock.enter_context(locked(self.folder))
                if self.here is not None and Manifest.read(self.folder) != self.here:
                    raise UsageError(f"{self.folder} was changed meanwhile; repeat. Nothing was changed by this pull.")
        return taken

    def _files(self) -> dict[str, Path]:
        """Every published file by its SHA-256: those of the bundle, each read to be sure, and the rest fetched."""
        published = self.published.manifest
        theirs = {task: entry for task, entry in published.tasks.items() if task not in self.own}
        wanted = places(published.model_copy(update={"tasks": theirs}))
        stated = {} if self.here is None else places(self.here)
        # An older bundle's manifest has no hashes of config and tokenizer.
        stated |= {name: wanted[name] for name in BUNDLE_FILES if name in wanted and name not in stated}
        here = {sha256: self.folder / place for place, sha256 in stated.items() if sha256 in wanted.values()}
        found = {sha256: path for sha256, path in here.items() if path.is_file() and sha256_of(path) == sha256}
        absent = [self.published.targets[place] for place, sha256 in wanted.items() if sha256 not in found]
        return {**found, **self.fetch(absent)}

    def _fill(self, fresh: Path, files: Mapping[str, Path]) -> list[str]:
        """Fill the folder, every task replayed over its backbone; the published tasks in it."""
        manifest = self.published.manifest
        for place, sha256 in places(manifest).items():
            if not place.startswith(f"{TASKS_FOLDER}/"):
                (fresh / place).parent.mkdir(exist_ok=True)
                try:
                    os.link(files[sha256], fresh / place)
                except OSError:  # a file system without links
                    shutil.copyfile(files[sha256], fresh / place)
        manifest.model_copy(update={"tasks": {}}).write(fresh)
        bundle, taken = Bundle(fresh), {}
        for task, entry in manifest.tasks.items():
            if task not in self.own:
                with self.stage(f"{task}: replaying its check"):
                    taken[task] = replayed(bundle, task, entry, read_version(entry, files))
        commit_tasks(bundle, [*taken.values(), *(self._along(bundle, task) for task in self.own)])
        return list(taken)

    def _along(self, bundle: Bundle, task: str) -> PreparedTask:
        """A task of this board's own, over the new backbone."""
        assert self.here is not None, "there are tasks"
        entry = self.here.tasks[task]
        with self.stage(f"{task}, of this board: replaying its check"):
            try:
                return replayed(bundle, task, entry, content_of(self.folder / TASKS_FOLDER, task, entry))
            except EdgepeftError as error:
                raise UsageError(
                    f"the channel has another backbone, and {task}, which is this board's own, cannot come along: "
                    f"{error} Nothing was changed. To give it up: --replace-tuned where the channel has a task of that "
                    "name, edgepeft remove where not."
                ) from error

    def _remember(self, fresh: Path, state: State, taken: Iterable[str]) -> None:
        """Trust and state go along, and come into force with the rest."""
        (fresh / WORK).mkdir(mode=0o700)
        _copy(self.work / METADATA, fresh / WORK / METADATA)
        sha256s = {task: digest(self.published.manifest.tasks[task]) for task in taken}
        state.note(sha256s)
        state.confirm(sha256s, set())
        state.write(fresh / WORK)


def _copy(source: Path, place: Path) -> None:
    """A folder with its links; not by ``shutil.copytree``, whose error no longer says that the disk is full."""
    place.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_symlink():
            (place / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            _copy(path, place / path.name)
        else:
            shutil.copyfile(path, place / path.name)


def replayed(bundle: Bundle, task: str, entry: TaskEntry, content: Mapping[str, Content]) -> PreparedTask:
    """A task from elsewhere, ``content`` by suffix, held to what its publisher states of it, and replayed here.

    Writes nothing.
    """
    graph, check, weights = content[GRAPH], content[CHECK], content.get(WEIGHTS)
    assert isinstance(graph, bytes) and isinstance(check, bytes) and not isinstance(weights, bytes)
    prepared = prepare_task(bundle, graph, check, Path(f"{task}{GRAPH}"), weights, stated=entry)
    if prepared.name != task:
        raise VerificationFailed(
            f"what is published as {task} is the task {prepared.name}; it must be published again."
        )
    return prepared

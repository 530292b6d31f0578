"""The board's side: what changed in a channel, verified, replayed on this processor, and put in force in one step.

Where more than tasks changed, the bundle is replaced as a whole: made beside the old one, checked, exchanged.  What is
unchanged is linked, not fetched, and tasks that this board tuned come along where they still give what they gave.
"""

import contextlib
import hashlib
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from platform import machine
from typing import Any

from tuf.api.metadata import TargetFile

from edgepeft import __version__
from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle, places
from edgepeft.bundle.manifest import MANIFEST_FILE, Manifest, TaskEntry
from edgepeft.bundle.versions import Content, content_of, digest, hashes, read_version
from edgepeft.common.atomic import check_replaceable, disk_errors, drop_leftovers, new_folder
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.common.messages import counted
from edgepeft.common.own_folder import held_folder, locked
from edgepeft.common.progress import Stage
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import CHECK, GRAPH, WEIGHTS
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.deploy.install import PreparedTask, commit_tasks, prepare_task, remove_task
from edgepeft.device.machine import isa_flags
from edgepeft.fleet.remote import STATE_FILE, WORK, Decision, Remote, State, decide, forget, pin, trusted_root
from edgepeft.fleet.repository import METADATA, same_base

_SPARE_BYTES = 8 << 20  # manifests, metadata, what else the board writes meanwhile
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MIN_S = 10
_PATIENCE_S = 5.0  # for all tasks that others hold: a commit is over by then, a tuning is not


@dataclass(frozen=True)
class Pulled:
    """What changed, and what did not and why."""

    taken: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)  # as it is, on purpose
    refused: Mapping[str, str] = field(default_factory=dict)  # what failed here
    busy: Mapping[str, str] = field(default_factory=dict)  # what could not be had this time
    whole: bool = False  # the backbone was replaced too
    requests: int = 0
    n_bytes: int = 0


def pull(
    address: str,
    folder: Path,
    *,
    channel: str = "stable",
    root: Path | None = None,
    replace_tuned: bool = False,
    stage: Stage = nullcontext,
) -> Pulled:
    """Bring the bundle in ``folder``, made where it is not there, to what a channel of a URL or folder holds.

    ``root`` is a file with the root to trust on first use; it is remembered outside of the bundle.  ``replace_tuned``
    also replaces what this board has tuned, added, rolled back or removed.  ``stage`` is entered around each file's
    download and each replay, with its name.
    """
    new = not folder.exists()
    if not new and not (folder / MANIFEST_FILE).is_file() and any(path.name != WORK for path in folder.iterdir()):
        raise UsageError(f"{folder} is not a bundle, and not empty. Give a bundle's folder, or a new one.")
    try:
        with disk_errors(folder):  # of tuf's files too
            folder.mkdir(parents=True, exist_ok=True)
            busy = f"another process is pulling into {folder}; wait for it, or end it."
            with held_folder(folder, WORK, busy=busy) as work:
                drop_leftovers(folder.resolve())
                remote = Remote(address, work, channel, trusted_root(folder, work, root))
                return _Pull(remote, folder, work, replace_tuned, stage).run()
    finally:
        if new:
            with contextlib.suppress(OSError):  # there is something in it
                folder.rmdir()


def _digests(manifest: Manifest) -> dict[str, str]:
    """Of tasks, by name."""
    return {task: digest(entry) for task, entry in manifest.tasks.items()}


class _Pull:
    """One pull into a bundle that no other pulls into."""

    def __init__(self, remote: Remote, folder: Path, work: Path, replace: bool, stage: Stage) -> None:
        self.remote, self.folder, self.work, self.replace, self.stage = remote, folder, work, replace, stage
        with stage("what is published"):
            self.published = remote.published()
        self.offered = _digests(self.published.manifest)

    def run(self) -> Pulled:
        """Do what is to be done."""
        if not (self.folder / MANIFEST_FILE).is_file():
            pin(self.folder, self.remote.root)
            return self._pulled(taken=tuple(self._put_whole(None, {}, State(under=_here()))), whole=True)
        here = Manifest.read(self.folder)
        ours, theirs = here.backbone, self.published.manifest.backbone
        if ours.identity != theirs.identity and not (self.work / STATE_FILE).is_file():  # nothing was taken up
            forget(self.work)
            raise UsageError(
                f"{self.remote.address} is of another bundle: its backbone is {theirs.source} (weights "
                f"{theirs.identity[:12]}), that of {self.folder} is {ours.source} ({ours.identity[:12]}). Pull into "
                "another folder."
            )
        pin(self.folder, self.remote.root)
        state = State.read(self.work, _digests(here))
        before = state.model_copy(deep=True)
        if (circumstances := _here()) != state.under:  # what was refused under others may pass here
            state.under, state.refused = circumstances, {}
        decision = decide(self.offered, _digests(here), state, replace=self.replace)
        if not same_base(here, self.published.manifest):
            stay = [task for task in here.tasks if task in decision.keep or task not in self.offered]
            own = {task: here.tasks[task] for task in stay if task not in decision.remove}
            taken = [task for task in self._put_whole(here, own, state) if task in decision.take]
            return self._pulled(taken=tuple(taken), removed=decision.remove, kept=decision.keep, whole=True)
        return self._tasks(decision, state, before)

    def _pulled(self, **found: Any) -> Pulled:
        fetcher = self.remote.fetcher
        return Pulled(**found, requests=fetcher.requests, n_bytes=fetcher.n_bytes)

    def _put_whole(self, here: Manifest | None, own: Mapping[str, TaskEntry], state: State) -> list[str]:
        """The way of a new backbone, config, tokenizer or template: a whole folder in the place of the old one.

        Tasks in ``own``, of this board, come along.  Gives the published tasks that are in force.
        """
        check_replaceable(self.folder)
        with contextlib.ExitStack() as claims, contextlib.ExitStack() as lock:
            for task in () if here is None else here.tasks:
                claims.enter_context(claim(self.folder, task))
            files = self._whole_files(here, own)
            # Behind a link, which stays as it is, and for the same users.
            with new_folder(self.folder.resolve(), force=True) as fresh:
                shutil.copymode(self.folder, fresh)
                taken = self._fill(fresh, files, own)
                # Trust and state go along, and come into force with the rest.
                (fresh / WORK).mkdir(mode=0o700)
                _copy(self.work / METADATA, fresh / WORK / METADATA)
                state.confirm({task: self.offered[task] for task in taken}, set())
                state.write(fresh / WORK)
                lock.enter_context(locked(self.folder))
                if here is not None and Manifest.read(self.folder) != here:
                    raise UsageError(f"{self.folder} was changed meanwhile; repeat. Nothing was changed by this pull.")
        return taken

    def _whole_files(self, here: Manifest | None, own: Collection[str]) -> dict[str, Path]:
        """Every published file by its SHA-256: those of the bundle, each read to be sure, and the rest fetched."""
        published = self.published.manifest
        theirs = {task: entry for task, entry in published.tasks.items() if task not in own}
        wanted = places(published.model_copy(update={"tasks": theirs}))
        stated = {} if here is None else places(here)
        # An older bundle's manifest has no hashes of config and tokenizer.
        stated |= {name: wanted[name] for name in BUNDLE_FILES if name in wanted and name not in stated}
        kept = {sha256: self.folder / place for place, sha256 in stated.items() if sha256 in wanted.values()}
        found = {sha256: path for sha256, path in kept.items() if path.is_file() and sha256_of(path) == sha256}
        return found | self._fetched(self.published.targets[at] for at, sha256 in wanted.items() if sha256 not in found)

    def _fill(self, fresh: Path, files: Mapping[str, Path], own: Mapping[str, TaskEntry]) -> list[str]:
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
            if task not in own:
                with self.stage(f"{task}: replaying its check"):
                    taken[task] = replay_task(bundle, task, entry, read_version(entry, files))
        commit_tasks(bundle, [*taken.values(), *(self._along(bundle, task, entry) for task, entry in own.items())])
        return list(taken)

    def _along(self, bundle: Bundle, task: str, entry: TaskEntry) -> PreparedTask:
        """A task of this board's own, over the new backbone."""
        with self.stage(f"{task}, of this board: replaying its check"):
            try:
                return replay_task(bundle, task, entry, content_of(self.folder / TASKS_FOLDER, task, entry))
            except EdgepeftError as error:
                raise UsageError(
                    f"the channel has another backbone, and {task}, which is this board's own, cannot come along: "
                    f"{error} Nothing was changed. To give it up: --replace-tuned where the channel has a task of that "
                    "name, edgepeft remove where not."
                ) from error

    def _tasks(self, decision: Decision, state: State, before: State) -> Pulled:
        """The way of everything else: tasks verified one by one, and committed together as the next versions."""
        refused = {task: why for task in decision.take if (why := state.refused.get(self.offered[task]))}
        entries = {task: self.published.manifest.tasks[task] for task in decision.take if task not in refused}
        wanted = [f"{TASKS_FOLDER}/{task}{suffix}" for task, entry in entries.items() for suffix in hashes(entry)]
        files = self._fetched(self.published.targets[place] for place in wanted)
        bundle, prepared = Bundle(self.folder), {}
        for task, entry in entries.items():
            with self.stage(f"{task}: replaying its check"):
                try:
                    prepared[task] = replay_task(bundle, task, entry, read_version(entry, files))
                except EdgepeftError as error:
                    refused[task] = state.refused[self.offered[task]] = str(error)
        state.refused = {sha256: why for sha256, why in state.refused.items() if sha256 in self.offered.values()}
        done, busy = self._commit(prepared, decision, state)
        if state != before:
            try:
                state.write(self.work)
            except EdgepeftError as error:  # the next pull sees what is in force, by what was noted before the commit
                if not (changed := (*done.take, *done.remove)):
                    raise
                raise EdgepeftError(
                    f"{', '.join(changed)}: in force as published, but {self.folder / WORK} could not be written to "
                    f"note it: {error.__cause__ or error}. Free some space; the next pull notes it."
                ) from error
        _drop_all_but(self.remote.files, ())
        kept = {task: why for task, why in done.keep.items() if task not in refused}
        return self._pulled(taken=done.take, removed=done.remove, kept=kept, refused=refused, busy=busy)

    def _commit(
        self, prepared: Mapping[str, PreparedTask], before: Decision, state: State
    ) -> tuple[Decision, dict[str, str]]:
        """Put tasks in force that nobody tunes meanwhile; decided anew, for a tuning may have ended since."""
        busy, bundle, ends = {}, Bundle(self.folder), time.monotonic() + _PATIENCE_S
        with contextlib.ExitStack() as claims:
            for task in (*prepared, *before.remove):
                try:
                    claims.enter_context(claim(self.folder, task, max(0.0, ends - time.monotonic())))
                except UsageError:
                    busy[task] = f"it is being tuned on this board, and this pull waited {_PATIENCE_S:g} s"
            now = decide(self.offered, _digests(Manifest.read(self.folder)), state, replace=self.replace)
            taken = [task for task in now.take if task in prepared and task not in busy]
            gone = [task for task in now.remove if task in before.remove and task not in busy]
            if taken or gone:
                state.note({task: self.offered[task] for task in taken}, gone)
                state.write(self.work)
            if taken:
                commit_tasks(bundle, [prepared[task] for task in taken], replace=True)
            for task in gone:
                remove_task(self.folder, task)
        here = _digests(Manifest.read(self.folder))
        # Also those that were the same before this board ever pulled.
        state.confirm({task: sha256 for task, sha256 in here.items() if self.offered.get(task) == sha256}, set(gone))
        return Decision(tuple(taken), tuple(gone), now.keep), busy

    def _fetched(self, targets: Iterable[TargetFile]) -> dict[str, Path]:
        """The files of targets, by SHA-256; others that lie about go."""
        by_hash = {target.hashes["sha256"]: target for target in targets}
        _drop_all_but(self.remote.files, by_hash)
        absent = {sha256: each for sha256, each in by_hash.items() if not (self.remote.files / sha256).is_file()}
        # A download is copied once it is whole; a commit writes the files, and those that they replace, once more each.
        need = 3 * sum(target.length for target in absent.values()) + _SPARE_BYTES if absent else 0
        if (free := shutil.disk_usage(self.folder).free) < need:
            raise EdgepeftError(
                f"{self.folder} has {free:,} bytes of room, and this needs {need:,} for "
                f"{counted(len(absent), 'file')}. Free some space, then repeat. Nothing was changed."
            )
        found = {}
        for sha256, target in by_hash.items():
            with self.stage(f"{target.path} ({target.length:,} bytes)"):
                found[sha256] = self.remote.fetch(target)
        return found


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


def replay_task(bundle: Bundle, task: str, entry: TaskEntry, content: Mapping[str, Content]) -> PreparedTask:
    """A task from elsewhere, ``content`` by suffix, held to what its publisher states, and replayed; writes nothing."""
    graph, check, weights = content[GRAPH], content[CHECK], content.get(WEIGHTS)
    assert isinstance(graph, bytes) and isinstance(check, bytes) and not isinstance(weights, bytes)
    prepared = prepare_task(bundle, graph, check, Path(f"{task}{GRAPH}"), weights, stated=entry)
    if prepared.name != task:
        raise VerificationFailed(
            f"what is published as {task} is the task {prepared.name}; it must be published again."
        )
    return prepared


def _drop_all_but(files: Path, sha256s: Iterable[str]) -> None:
    """Remove downloads, whole or not, and nothing that is named otherwise."""
    wanted = set(sha256s)
    for path in files.iterdir() if files.is_dir() else ():
        if (found := re.fullmatch(r"([0-9a-f]{64})(\.part)?", path.name)) and found[1] not in wanted:
            path.unlink()


def _here() -> str:
    """What a check's result depends on: this processor, this ONNX Runtime, this edgepeft."""
    facts = (__version__, metadata.version("onnxruntime"), machine(), *isa_flags())
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()


def seconds_of(text: str) -> int:
    """``30m``, ``1h`` or ``1d`` in seconds."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if seconds < _MIN_S:
        raise UsageError(f"--every is a time such as 30m, 1h or 1d, of at least {_MIN_S} s; found {text!r}.")
    return seconds


def moments(
    period_s: float,
    note: Callable[[float], object] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> Iterator[None]:
    """One moment in each period, uniform in it, for ever: at any time a fleet's requests come as a steady stream.

    ``note`` gets the seconds until the next; ``draw`` gives numbers from 0 to 1.
    """
    before = 0.0
    while True:
        at = draw() * period_s  # from the period's beginning
        wait = at + before
        note(wait)
        sleep(wait)
        yield
        before = period_s - at

"""What a board knows of a repository: verified by tuf's ``Updater``; the root it trusts; what was taken up before.

The root is one that is given, or that was given before and is kept outside of the bundle.  What lies in a bundle's
``.fleet`` may have come with the bundle, by whomever.  So it is checked against that root, and where it is of another
one it is dropped, the state of what was taken up with it.

That state is ``state.json`` there.  A task is the fleet's where its graph is one that was taken up, any other was tuned
or added on the board.  A version is noted before the commit and confirmed after it, so a power cut leaves at worst a
note, which the next pull settles.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from tuf.api import exceptions
from tuf.api.metadata import Metadata, TargetFile, Targets
from tuf.api.serialization import DeserializationError
from tuf.ngclient import Updater, UpdaterConfig

from edgepeft.bundle.bundle import BACKBONE_FILE
from edgepeft.bundle.manifest import FileHash
from edgepeft.common.atomic import wait_for_disk, write_atomically, write_json
from edgepeft.common.errors import BundleError, EdgepeftError, UnknownName, UsageError, VerificationFailed, look_up
from edgepeft.common.resources import bytes_at, cache_folder, private_folder
from edgepeft.fleet.fetcher import HUB, Fetcher, HubFetcher, address_of
from edgepeft.fleet.repository import METADATA, TARGETS, Published, check_channel

WORK = ".fleet"  # in the bundle's folder: trusted metadata, the state, downloads
STATE_FILE = "state.json"
FILES = "files"
_TIME = "%Y-%m-%d %H:%M UTC"
_BEHIND = timedelta(days=1)  # a summer time that was set by hand is no attack
_MAX_ROOT_BYTES = 512_000  # as tuf's
_MAX_KNOWN = 50  # versions of a task: an older one counts as the board's own
_NO_ROOT = (OSError, ValueError, KeyError, TypeError)
_HISTORY = "root_history"  # as tuf names it, in the folder of metadata


class Remote:
    """A repository at ``address``, with what this board trusts and has fetched of it in ``work``.

    ``root`` is the root to begin with: metadata in ``work`` count as far as it leads to them.
    """

    def __init__(self, address: str, work: Path, channel: str, root: bytes) -> None:
        self.address, self.channel, self.root, self._work = address, check_channel(channel), root, work
        self._trusted, self.files = work / METADATA, work / FILES
        base = address_of(address).rstrip("/")
        self._first = not (self._trusted / "targets.json").is_file()
        self.fetcher = (HubFetcher if base.startswith(HUB) else Fetcher)(self.files, f"{base}/{TARGETS}/")
        self._trusted.mkdir(parents=True, exist_ok=True)
        with self._said():
            self._updater = Updater(
                str(self._trusted),
                f"{base}/{METADATA}/",
                str(self.files),
                f"{base}/{TARGETS}/",
                self.fetcher,
                UpdaterConfig(targets_max_length=16 << 20),  # as a manifest's
                bootstrap=root,
            )

    def published(self) -> Published:
        """What the channel holds now."""
        self._note_clock()
        with self._said():
            self._updater.refresh()
            for path in (self._trusted / _HISTORY).iterdir():
                wait_for_disk(path)  # the updater leaves that to the system, and without a root nothing is trusted
            top = Metadata[Targets].from_file(str(self._trusted / "targets.json")).signed
            channels = (top.delegations.roles or {}) if top.delegations is not None else {}
            look_up(f"channel of {self.address}", self.channel, channels)
            self._updater.get_targetinfo(f"{self.channel}/{BACKBONE_FILE}")
            # The updater has just verified the file that it keeps, and lists targets by name only.
            own = Metadata[Targets].from_file(str(self._trusted / f"{self.channel}.json")).signed
        return Published.read(self.channel, own.targets)

    def fetch(self, target: TargetFile) -> Path:
        """A target's file, whole and with the hash that is signed."""
        path = self.files / target.hashes["sha256"]
        with self._said(target):
            if self._updater.find_cached_target(target, str(path)) is None:
                path.unlink(missing_ok=True)  # a second name, maybe, of another file
                try:
                    self._updater.download_target(target, str(path))
                except BaseException:
                    path.unlink(missing_ok=True)
                    raise
        return path

    def _note_clock(self) -> None:
        """Say where the clock is behind the last time that something new came: what expired since looks fresh by it.

        Versions only grow, whatever the clock says.  Nothing is refused: a clock that was once ahead would end updates.
        """
        with contextlib.suppress(OSError, OverflowError, ValueError):
            seen = datetime.fromtimestamp((self._trusted / "timestamp.json").stat().st_mtime, UTC)
            if seen - (now := datetime.now(UTC)) > _BEHIND:
                warnings.warn(
                    f"this board's clock says {now:{_TIME}}, and it was {seen:{_TIME}} when this board last saw "
                    "something new. Set it: with such a clock nobody can see that metadata are out of date, or that "
                    "something newer is held back.",
                    RuntimeWarning,
                    2,
                )

    @contextlib.contextmanager
    def _said(self, target: TargetFile | None = None) -> Iterator[None]:
        """What tuf refuses, in words; a board that trusted nothing before trusts nothing after."""
        try:
            yield
        except (exceptions.RepositoryError, exceptions.DownloadError, UnknownName) as error:
            if self._first and not (self._trusted / "targets.json").is_file():
                forget(self._work)
            if isinstance(error, UnknownName):
                raise
            what = "the repository" if target is None else target.path
            refused = isinstance(error, (exceptions.RepositoryError, exceptions.DownloadLengthMismatchError))
            kind = VerificationFailed if refused else EdgepeftError
            words = next((words for each, words in _WORDS.items() if isinstance(error, each)), "{error}.")
            said = words.format(error=error, now=f"{datetime.now(UTC):{_TIME}}")
            raise kind(f"{self.address}: {what}: {said} Nothing was changed.") from error


# The first that an error is an instance of.
_WORDS: dict[type[Exception], str] = {
    exceptions.ExpiredMetadataError: (
        "{error}, and this board's clock says {now}. Either the clock is wrong, or nobody refreshed the repository "
        "(edgepeft publish REPOSITORY --refresh), or somebody holds back what is new. The bundle goes on answering."
    ),
    exceptions.UnsignedMetadataError: (
        "the signatures are not by the keys that this board trusts ({error}): it is another repository, its keys were "
        "revoked, or it was altered."
    ),
    exceptions.BadVersionNumberError: (
        "an older or another state was sent than the one signed or seen here before ({error})."
    ),
    DeserializationError: (
        "what was sent is no metadata ({error}). Is that the address of a repository, and does no login page or proxy "
        "answer in its place?"
    ),
    exceptions.LengthOrHashMismatchError: "the file is not the one that is signed ({error}).",
    exceptions.DownloadLengthMismatchError: "the file is longer than what is signed ({error}).",
    exceptions.SlowRetrievalError: "it comes too slowly ({error}). What came is kept; repeat later.",
    exceptions.DownloadHTTPError: (
        "a file is missing ({error}). Is that the address of a repository, and is all of it there?"
    ),
    exceptions.DownloadError: "it cannot be read ({error}). What came is kept; repeat later.",
}


def trusted_root(folder: Path, work: Path, given: Path | None) -> bytes:
    """The root to begin with for the bundle in ``folder``; ``given`` is a file with it, on first use at least."""
    pinned = _pinned(folder)
    if given is None:
        if pinned is None:
            came = f" (what {folder / WORK} says may have come with the bundle)" if (work / METADATA).is_dir() else ""
            raise UsageError(
                f"this board trusts no repository yet{came}. Give --root FILE: the publisher's {METADATA}/1.root.json, "
                "which must come by another way than the repository and the bundle."
            )
        content = pinned
    else:
        try:
            content = _root_at(given)
        except _NO_ROOT as error:
            raise UsageError(
                f"--root {given} is no TUF root ({error}). Give the publisher's {METADATA}/1.root.json."
            ) from error
    if _is_of(work / METADATA, content):
        return content
    if pinned is not None and _is_of(work / METADATA, pinned):
        raise UsageError(
            f"--root {given} is not the root that this board trusts, in {folder / WORK / METADATA}. Where that is "
            "meant, remove that folder, and the board begins anew."
        )
    forget(work)
    return content


def pin(folder: Path, root: bytes) -> None:
    """Remember the root that the bundle in a folder trusts."""
    try:
        if _pinned(folder) != root:
            write_atomically(_place(folder), root)
    except (OSError, EdgepeftError) as error:
        warnings.warn(f"the next pull needs --root again: it cannot be kept ({error}).", RuntimeWarning, 2)


def forget(work: Path) -> None:
    """Remove metadata and state, by the names that they have."""
    metadata = work / METADATA
    with contextlib.suppress(FileNotFoundError):
        for path in (*metadata.glob("*.json"), *(metadata / _HISTORY).glob("*.root.json"), work / STATE_FILE):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there is something else in it
        (metadata / _HISTORY).rmdir()
        metadata.rmdir()


def _is_of(metadata: Path, root: bytes) -> bool:
    """Whether metadata began with that root."""
    with contextlib.suppress(OSError):
        return (metadata / _HISTORY / f"{_version(root)}.root.json").read_bytes() == root
    return False


def _root_at(path: Path) -> bytes:
    """A root's bytes; one of ``_NO_ROOT`` where the file cannot be read or is none."""
    content = bytes_at(path, _MAX_ROOT_BYTES)
    _version(content)
    return content


def _version(root: bytes) -> int:
    return int(json.loads(root)["signed"]["version"])


def _pinned(folder: Path) -> bytes | None:
    with contextlib.suppress(EdgepeftError, *_NO_ROOT):
        return _root_at(_place(folder))
    return None


def _place(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return private_folder(cache_folder() / "roots") / f"{name}.root.json"


class State(BaseModel):
    """What was taken up before; tasks by their digests."""

    model_config = ConfigDict(extra="ignore")

    format: Literal["edgepeft.fleet/1"] = "edgepeft.fleet/1"
    taken: dict[str, FileHash] = {}  # last, by task
    known: dict[str, list[FileHash]] = {}  # all that ever came, by task
    pending: dict[str, FileHash] = {}  # being committed
    leaving: list[str] = []  # being removed as withdrawn
    refused: dict[str, str] = {}  # what failed here, with the reason
    under: str = ""  # on what it failed: elsewhere it may pass

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

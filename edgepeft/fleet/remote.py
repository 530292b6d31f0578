"""A repository as a board sees it: verified by tuf's ``Updater``, its refusals in words."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    SlowRetrievalError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, TargetFile, Targets
from tuf.ngclient import Updater, UpdaterConfig

from edgepeft.bundle.bundle import BACKBONE_FILE
from edgepeft.common.atomic import synced
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError, VerificationFailed
from edgepeft.fleet.fetcher import Fetcher, address_of
from edgepeft.fleet.hub import HUB, HubFetcher
from edgepeft.fleet.layout import METADATA, TARGETS, Published, check_channel

__all__ = ["Remote"]

_MOST_ROOT_BYTES = 512_000  # as tuf's
_LIMITS = UpdaterConfig(targets_max_length=16 << 20)  # as a manifest's
FILES = "files"


class Remote:
    """A repository at ``address``, with what this board trusts and has fetched of it in ``work``.

    ``root`` is a file with the root to trust on first use.
    """

    def __init__(self, address: str, work: Path, channel: str, root: Path | None = None) -> None:
        self.address, self.channel = address, check_channel(channel)
        self._trusted, self.files = work / METADATA, work / FILES
        base = address_of(address).rstrip("/")
        self._first = not (self._trusted / "root.json").is_file()
        bootstrap = self._bootstrap(root)
        self.fetcher = (HubFetcher if base.startswith(HUB) else Fetcher)(self.files, f"{base}/{TARGETS}/")
        self._trusted.mkdir(parents=True, exist_ok=True)
        with self._said():
            self._updater = Updater(
                str(self._trusted),
                f"{base}/{METADATA}/",
                str(self.files),
                f"{base}/{TARGETS}/",
                self.fetcher,
                _LIMITS,
                bootstrap=bootstrap,
            )

    def _bootstrap(self, root: Path | None) -> bytes | None:
        """The root to begin with; None for the one that is trusted."""
        if root is None:
            if self._first:
                raise UsageError(
                    f"this board trusts no repository yet. Give --root FILE: the publisher's {METADATA}/1.root.json, "
                    "which must come by another way than the repository."
                )
            return None
        try:
            with root.open("rb") as file:
                content = file.read(_MOST_ROOT_BYTES)
            version = int(json.loads(content)["signed"]["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--root {root} is no TUF root ({error}). Give the publisher's {METADATA}/1.root.json."
            ) from error
        known = self._trusted / "root_history" / f"{version}.root.json"
        if not self._first and (not known.is_file() or known.read_bytes() != content):
            raise UsageError(
                f"--root {root} is not the root that this board trusts, in {self._trusted}. Where that is meant, "
                "remove that folder, and the board begins anew."
            )
        return content if self._first else None

    def published(self) -> Published:
        """What the channel holds now."""
        with self._said():
            self._updater.refresh()
            for path in (self._trusted / "root_history").iterdir():
                synced(path)  # the updater leaves that to the system, and without a root nothing is trusted
            top = Metadata[Targets].from_file(str(self._trusted / "targets.json")).signed
            channels = (top.delegations.roles or {}) if top.delegations is not None else {}
            if self.channel not in channels:
                raise UnknownName(f"channel of {self.address}", self.channel, channels)
            self._updater.get_targetinfo(f"{self.channel}/{BACKBONE_FILE}")
            # The updater has just verified the file that it keeps, and lists targets by name only.
            own = Metadata[Targets].from_file(str(self._trusted / f"{self.channel}.json")).signed
        return Published.read(self.channel, own.targets)

    def fetch(self, target: TargetFile) -> Path:
        """A target's file, whole and with the hash that is signed."""
        path = self.files / target.hashes["sha256"]
        with self._said(target):
            if self._updater.find_cached_target(target, str(path)) is None:
                try:
                    self._updater.download_target(target, str(path))
                except BaseException:
                    path.unlink(missing_ok=True)
                    raise
        return path

    @contextlib.contextmanager
    def _said(self, target: TargetFile | None = None) -> Iterator[None]:
        """What tuf refuses, in words; a board that trusted nothing before trusts nothing after."""
        try:
            yield
        except (RepositoryError, DownloadError, UnknownName) as error:
            if self._first and not (self._trusted / "targets.json").is_file():
                shutil.rmtree(self._trusted, ignore_errors=True)
            if isinstance(error, UnknownName):
                raise
            what = "the repository" if target is None else target.path
            refused = isinstance(error, (RepositoryError, DownloadLengthMismatchError))
            kind = VerificationFailed if refused else EdgepeftError
            raise kind(f"{self.address}: {what}: {_in_words(error)} Nothing was changed.") from error


def _in_words(error: Exception) -> str:
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            return words.format(error=error, now=now)
    return f"{error}."


# The first that an error is an instance of.
_WORDS: dict[type[Exception], str] = {
    ExpiredMetadataError: (
        "{error}, and this board's clock says {now}. Either the clock is wrong, or nobody refreshed the repository "
        "(edgepeft publish REPOSITORY --refresh), or somebody holds back what is new. The bundle goes on answering."
    ),
    UnsignedMetadataError: (
        "the signatures are not by the keys that this board trusts ({error}): it is another repository, its keys were "
        "revoked, or it was altered."
    ),
    BadVersionNumberError: "an older or another state was sent than the one signed or seen here before ({error}).",
    LengthOrHashMismatchError: "the file is not the one that is signed ({error}).",
    DownloadLengthMismatchError: "the file is longer than what is signed ({error}).",
    SlowRetrievalError: "it comes too slowly ({error}). What came is kept; repeat later.",
    DownloadHTTPError: "a file is missing ({error}). Is that the address of a repository, and is all of it there?",
    DownloadError: "it cannot be read ({error}). What came is kept; repeat later.",
}

"""A repository as a board sees it: verified by tuf's ``Updater``, its refusals in words."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
from edgepeft.common.errors import EdgepeftError, UnknownName, VerificationFailed
from edgepeft.fleet.fetcher import Fetcher, address_of
from edgepeft.fleet.hub import HUB, HubFetcher
from edgepeft.fleet.layout import METADATA, TARGETS, Published, check_channel
from edgepeft.fleet.trust import forget

__all__ = ["Remote"]

_LIMITS = UpdaterConfig(targets_max_length=16 << 20)  # as a manifest's
FILES = "files"
_TIME = "%Y-%m-%d %H:%M UTC"
_BEHIND = timedelta(days=1)  # a summer time that was set by hand is no attack


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
                _LIMITS,
                bootstrap=root,
            )

    def published(self) -> Published:
        """What the channel holds now."""
        self._note_clock()
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
        except (RepositoryError, DownloadError, UnknownName) as error:
            if self._first and not (self._trusted / "targets.json").is_file():
                forget(self._work)
            if isinstance(error, UnknownName):
                raise
            what = "the repository" if target is None else target.path
            refused = isinstance(error, (RepositoryError, DownloadLengthMismatchError))
            kind = VerificationFailed if refused else EdgepeftError
            raise kind(f"{self.address}: {what}: {_in_words(error)} Nothing was changed.") from error


def _in_words(error: Exception) -> str:
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words.format(error=error, now=f"{datetime.now(UTC):{_TIME}}")
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

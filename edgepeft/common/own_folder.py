"""Folders that edgepeft keeps inside another (a bundle's ``.fleet`` and ``.tune``, a sweep's runs), and locks.

Whoever makes a bundle or can write beside it can put a link there, or a folder of theirs.  So nothing is written,
deleted or locked but in a folder that was opened without following a link, that belongs to this user or root, and that
nobody else can write to; the same holds of what lies in it.  The way up to the bundle may have links.

A folder of ours that its group can write to passes: a umask of 002, as where each user has a group of their own, makes
such, and which group that is was the owner's to choose.  New folders are closed to everybody else.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path, PurePath

from edgepeft.common.errors import EdgepeftError, UsageError

LOCK_FILE, LOCK_WAIT_S = ".edgepeft.lock", 60.0  # a commit to a bundle takes a second or two
_LOCK_POLL_S = 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def own_folder(base: Path, *names: str, make: bool = False, deep: bool = False) -> Iterator[Path]:
    """Open ``base/name/...``, see that it is nobody else's, and yield a path that goes on leading to it.

    Where Linux' /proc is, that path is of the open folder, so what becomes of its name meanwhile changes nothing.
    ``make`` makes what is missing; ``deep`` looks at all that lies in it, too, before it is written to.
    """
    shown, descriptor = base, os.open(base, _FOLDER)
    try:
        for name in names:
            if name in ("", ".", "..") or "/" in name:
                raise EdgepeftError(f"{name!r} is no name of a folder in {shown}.")
            shown /= name
            inner = _opened(descriptor, name, shown, make)
            os.close(descriptor)
            descriptor = inner
        if deep:
            _require_own_content(descriptor, shown)
        through = Path(f"/proc/self/fd/{descriptor}")
        path = through if through.exists() else shown
        try:
            yield path
        except EdgepeftError as error:  # which names what nobody gave
            if str(through) in str(error):
                error.args = (str(error).replace(str(through), str(shown)),)
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held_folder(base: Path, *names: str, busy: str = "", wait_s: float = 0) -> Iterator[Path]:
    """As ``own_folder``, made, looked through and locked as by ``locked``; what is empty afterwards goes."""
    held = contextlib.ExitStack()
    while True:
        with contextlib.suppress(Gone), contextlib.ExitStack() as tried:  # by the one who held it last
            folder = tried.enter_context(own_folder(base, *names, make=True, deep=True))
            tried.enter_context(locked(folder, wait_s, busy))
            held = tried.pop_all()
            break
    try:
        with held:
            yield folder
    finally:
        with contextlib.suppress(OSError, EdgepeftError):  # there is something in it
            for n in range(len(names) - 1, -1, -1):
                with own_folder(base, *names[:n]) as parent:
                    (parent / names[n]).rmdir()


def _opened(parent: int, name: str, shown: Path, make: bool) -> int:
    """A descriptor of the folder ``name`` in ``parent``, which is nobody else's."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    try:
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            _require_own(os.lstat(name, dir_fd=parent), shown)
            raise EdgepeftError(f"{shown} is a file, and a folder is needed there. Remove it, then repeat.") from None
        raise
    try:
        _require_own(os.fstat(descriptor), shown)
    except EdgepeftError:
        os.close(descriptor)
        raise
    return descriptor


def _require_own_content(descriptor: int, shown: Path) -> None:
    """See that what lies in a folder is as the folder itself; a link may name a file beside it, as tuf's does.

    What others cannot reach may have any mode: a umask of 0 gives files every right.
    """
    reached = bool(os.fstat(descriptor).st_mode & stat.S_IXOTH)
    for parent, folders, files, inside in os.fwalk(".", dir_fd=descriptor):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = os.lstat(name, dir_fd=inside)
                beside = stat.S_ISLNK(status.st_mode) and name in files  # if it leads down
                to = PurePath(os.readlink(name, dir_fd=inside) if beside else "/")
                if to.is_absolute() or ".." in to.parts:
                    _require_own(status, shown / parent / name, reached)


def _require_own(status: os.stat_result, shown: Path, reached: bool = True) -> None:
    """See that a folder or file is no link, and nobody else's to write to."""
    owner, us = status.st_uid, os.geteuid()
    if stat.S_ISLNK(status.st_mode):
        raise EdgepeftError(
            f"{shown} is a link, of user {owner}; nothing is written or deleted through it. Remove it, then repeat."
        )
    if owner not in (us, 0):  # root may write anywhere
        raise EdgepeftError(
            f"{shown} belongs to user {owner}, and this is user {us}. Work as that user; or remove it, where it is not "
            "known how it came there."
        )
    all_may = bool(status.st_mode & stat.S_IWOTH)
    if reached and (all_may or (status.st_mode & stat.S_IWGRP and owner != us)):
        who, right = ("every user", "o") if all_may else ("its group", "g")
        raise EdgepeftError(
            f"{shown}, of user {owner}, can be written to by {who} (mode {stat.S_IMODE(status.st_mode):o}). If nobody "
            f"else has written there, close it: chmod {right}-w {shown}; else remove it."
        )


class Gone(EdgepeftError):
    """The folder was removed since it was found, by one who held it."""


@contextlib.contextmanager
def locked(folder: Path, wait_s: float = LOCK_WAIT_S, busy: str = "") -> Iterator[None]:
    """Keep other processes out of such blocks for this folder; what a dead process held is free.

    The lock is flock(2) on a file in the folder that this user alone may open, so that no other user can hold it; the
    file goes with the block.  ``busy`` is what a user is told who must not wait for another process.
    """
    import fcntl

    path, ends = folder / LOCK_FILE, time.monotonic() + wait_s
    while True:
        descriptor = _lock_file(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if time.monotonic() > ends:
                said = f"process {holder} has held {path} for {wait_s:g} s; wait for it, or end it, then repeat."
                raise (UsageError(busy) if busy else EdgepeftError(said)) from None
            time.sleep(_LOCK_POLL_S)
            continue
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # the one who held it has removed it
    try:
        with contextlib.suppress(OSError):  # a full disk only hides who holds it, and what is held may make room
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        if _is_at(path, descriptor):  # else the folder was exchanged, or the file removed by hand
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _lock_file(path: Path) -> int:
    """A descriptor of the file, made where it is missing, private to this user."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise Gone(f"{path.parent} was removed meanwhile; repeat.") from None
        remedy = "Write to the folder as the user that it belongs to"
        remedy = "Work on a copy in a place that can be written" if error.errno == errno.EROFS else remedy
        raise EdgepeftError(
            f"{path.parent} cannot be locked for writing: {path.name} cannot be opened ({error.strerror}). {remedy}."
        ) from error
    status, us = os.fstat(descriptor), os.geteuid()
    if status.st_uid not in (us, 0, path.parent.stat().st_uid) or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise EdgepeftError(
            f"{path.parent} cannot be locked for writing: {path.name} is of user {status.st_uid}, and this is user "
            f"{us}. Remove {path}, then repeat."
        )
    if status.st_mode & 0o077:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
        if not os.fstat(descriptor).st_mode & 0o077:  # somebody else may hold it open, and locked; vfat has no modes
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return _lock_file(path)
    return descriptor

"""One process at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from edgepeft.common.errors import EdgepeftError

__all__ = ["LOCK_FILE", "LOCK_WAIT_S", "locked"]

LOCK_FILE, LOCK_WAIT_S = ".edgepeft.lock", 60.0  # a commit to a bundle takes a second or two
_LOCK_POLL_S = 0.05


@contextlib.contextmanager
def locked(folder: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Keep other processes out of such blocks for this folder; what a dead process held is free.

    The lock is flock(2) on a file in the folder that this user alone may open, so that no other user can hold it; the
    file goes with the block.

    Raises:
        EdgepeftError: the file cannot be made, or another process has held it for ``wait_s`` seconds; says which.
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
                raise EdgepeftError(
                    f"process {holder} has held {path} for {wait_s:g} s; wait for it, or end it, then repeat."
                ) from None
            time.sleep(_LOCK_POLL_S)
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)  # the one who held it has removed it
    try:
        with contextlib.suppress(OSError):  # a full disk only hides who holds it, and what is held may make room
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the folder was exchanged, or the file removed by hand
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                path.unlink()
        os.close(descriptor)


def _lock_file(path: Path) -> int:
    """A descriptor of the file, made where it is missing, private to this user."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EdgepeftError(
            f"{path.parent} cannot be locked for writing: {path.name} cannot be opened ({error.strerror}). "
            "Write to the folder as the user that it belongs to."
        ) from error

"""Where shipped data lies, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepeft.errors import EdgepeftError, UsageError

__all__ = [
    "cache_folder",
    "check_target",
    "data_folder",
    "file_identity",
    "locked",
    "new_folder",
    "package_data",
    "refuse_mount_point",
    "sha256_of",
    "write_atomically",
    "write_json",
]

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


def package_data(name: str) -> Path:
    """A file or folder that the wheel carries in ``edgepeft/_data``."""
    return _PACKAGE / "_data" / name


def data_folder(name: str) -> Path:
    """``profiles`` or ``bench/scenarios``: from the checkout when there is one, else from the wheel."""
    checkout = _CHECKOUT / name
    if checkout.is_dir() and (_CHECKOUT / "pyproject.toml").is_file():
        return checkout
    return package_data(name)


def cache_folder() -> Path:
    """The folder of what can be made anew: ``EDGEPEFT_CACHE``, or ``edgepeft`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        EdgepeftError: neither is set, and this user has no home, as in a container under a number of its own.
    """
    if configured := os.environ.get("EDGEPEFT_CACHE"):
        return Path(configured)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # XDG: a relative path is ignored
        return shared / "edgepeft"
    try:
        return Path.home() / ".cache" / "edgepeft"
    except RuntimeError as error:
        raise EdgepeftError(
            f"there is no folder for the cache: HOME is not set, and user {os.getuid()} has no home. "
            "Set EDGEPEFT_CACHE to a folder."
        ) from error


def file_identity(path: Path) -> str:
    """A text that changes whenever the file is replaced or written to: its place, size and times.

    Raises:
        OSError: it is not there.
    """
    status = path.stat()
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in one pass of constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turn an errno into a message about what could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EdgepeftError(
                f"no space left on the disk while writing {target}; nothing was changed. Free some space, then repeat."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise EdgepeftError(f"{target} cannot be written ({error.strerror}); choose another place.") from error
        if error.errno == errno.EBUSY:  # a mount within one file system, which `refuse_mount_point` does not see
            raise EdgepeftError(f"{target} is mounted and cannot be replaced; choose a folder inside it.") from error
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: temporary file beside it, fsync, rename.

    Raises:
        EdgepeftError: no space left or no permission; the old file is untouched.
    """
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)  # mkstemp makes private files
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder; a process that dies releases it."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` as indented UTF-8 JSON, atomically; what has no UTF-8, as in a file's name, becomes ``?``."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(errors="replace"))


@contextlib.contextmanager
def new_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Fill a folder that appears whole or not at all.

    Yields a temporary folder beside ``path``, which is renamed into place when the block ends.  Any exception, Ctrl-C
    included, removes it and leaves what was at ``path`` as it was.

    Raises:
        UsageError: ``path`` exists, and ``force`` is not given (or it is a file); it is a mount point; as
            ``check_target``.
        EdgepeftError: no space left or no permission.
    """
    path = path.absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; an output folder is needed. Choose another name.")
    refuse_mount_point(path)
    check_target(path)
    if path.exists() and any(path.iterdir()) and not force:
        raise UsageError(f"{path} exists already. Give --force to replace it, or choose another folder.")
    made = [parent for parent in path.parents if not parent.exists()]
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            umask = os.umask(0)
            os.umask(umask)
            for file in temporary.rglob("*"):
                if file.is_file():
                    file.chmod(0o666 & ~umask)  # safetensors writes private files
                    _sync(file)
            temporary.chmod(0o777 & ~umask)
            _swap_in(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty: another process has begun to use it
                for parent in made:
                    parent.rmdir()
            raise
        _sync(path.parent)


def check_target(path: Path) -> None:
    """Check that a file or folder can be written at ``path``, before the work that makes it.

    Raises:
        UsageError: a file is in the way.
        EdgepeftError: the nearest folder above is not this user's to write.
    """
    # Not Path.exists, which raises where a folder cannot be entered.
    above = next((parent for parent in path.absolute().parents if os.path.exists(parent)), Path("/"))  # noqa: PTH110
    if not above.is_dir():
        raise UsageError(f"{path} cannot be written: {above} is a file. Choose another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise EdgepeftError(f"{path} cannot be written: {above} is not this user's to write. Choose another place.")


def refuse_mount_point(path: Path) -> None:
    """Check that a folder can be replaced, before the work that fills it.

    Raises:
        UsageError: something is mounted there, as a container's volume is.
    """
    if path.is_mount():
        raise UsageError(
            f"{path} is a mount point, which cannot be replaced by a new folder; give one inside it: {path / 'out'}."
        )


def _swap_in(temporary: Path, path: Path) -> None:
    """Rename ``temporary`` to ``path``; an old folder is moved aside first and removed last."""
    if not path.exists():
        temporary.rename(path)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    path.rename(aside / "old")
    try:
        temporary.rename(path)
    except BaseException:
        (aside / "old").rename(path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)

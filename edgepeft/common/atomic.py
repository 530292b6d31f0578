"""Files and folders that appear whole or not at all."""

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from edgepeft.common.errors import EdgepeftError, UsageError

_TOKEN_BYTES = 4
_TOKEN = "[0-9a-f]" * 2 * _TOKEN_BYTES


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that the block writes; then it takes the place: fsync, rename."""
    _check_plain(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file.")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        try:
            yield temporary
            wait_for_disk(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        wait_for_disk(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, whole or not at all."""
    # Unlike tempfile's, with the mode that this process gives its files.
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(content)


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` as indented UTF-8 JSON, atomically; what has no UTF-8, as in a file's name, becomes ``?``."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(errors="replace"))


def wait_for_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(path: Path, *, force: bool = False, read: Collection[Path] = ()) -> Iterator[Path]:
    """Fill a folder that appears whole or not at all; one that is or holds what is ``read`` is not replaced.

    Yields a temporary folder beside ``path``, which is renamed into place when the block ends.  Any exception, Ctrl-C
    included, removes it and leaves what was at ``path`` as it was; what a killed process left there goes first.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()  # a link stays one
    check_replaceable(path)
    check_target(path)
    if lost := next((each for each in read if each.exists() and each.resolve().is_relative_to(path.resolve())), None):
        raise UsageError(f"{path} would be replaced, and with it {lost}, which is read. Choose another folder.")
    if path.exists() and any(path.iterdir()) and not force:
        raise UsageError(f"{path} exists already. Give --force to replace it, or choose another folder.")
    made = [parent for parent in path.parents if not parent.exists()]
    with disk_errors(path), contextlib.ExitStack() as held:
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_leftovers(path)
        temporary = _beside(path)
        temporary.mkdir()
        with contextlib.suppress(OSError):  # a file system without locks: nobody takes it for abandoned there either
            held.enter_context(_flocked(temporary))
        mode = temporary.stat().st_mode & 0o666  # what this process gives its files
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    file.chmod(mode)  # safetensors writes private files
                    wait_for_disk(file)
            _swap_in(temporary, path)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty: another process has begun to use it
                for parent in made:
                    parent.rmdir()
            if isinstance(error, EdgepeftError) and str(temporary) in str(error):  # a name that nobody gave
                error.args = (str(error).replace(str(temporary), str(path)),)
            raise
        wait_for_disk(path.parent)


def check_target(path: Path) -> None:
    """Check that a file or folder can be written at ``path``, before the work that makes it."""
    _check_plain(path)
    # Not Path.exists, which raises where a folder cannot be entered.
    above = next((parent for parent in path.absolute().parents if os.path.exists(parent)), Path("/"))  # noqa: PTH110
    if not above.is_dir():
        raise UsageError(f"{path} cannot be written: {above} is a file. Choose another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        why = "on a read-only file system" if os.statvfs(above).f_flag & os.ST_RDONLY else "not this user's to write"
        raise EdgepeftError(f"{path} cannot be written: {above} is {why}. Choose another place.")


def _check_plain(path: Path) -> None:
    """Check that no device or pipe is at ``path``: a file would take its place, root's /dev/null too."""
    special = os.path.exists(path) and not (path.is_file() or path.is_dir())  # noqa: PTH110
    if special or path.absolute().parent == Path("/dev"):  # /dev/stdout may lead to a file
        raise UsageError(f"{path} is a device or a pipe, whose place a file would take; name a file.")


def check_replaceable(path: Path) -> None:
    """Check that a folder can take the place of what is at ``path``, before the work that fills it."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; an output folder is needed. Choose another name.")
    if path.absolute().is_mount():  # of "." itself it is always true
        raise UsageError(
            f"{path} is a mount point, which cannot be replaced by a new folder; give one inside it: {path / 'out'}."
        )


def drop_leftovers(path: Path) -> None:
    """Remove what killed processes left beside ``path`` of folders that were to become it, or were it before."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{_TOKEN}"):
        with contextlib.suppress(OSError), _flocked(left):
            shutil.rmtree(left)


def drop_unfinished(folder: Path, *names: str) -> None:
    """Remove what killed processes left of files of these names, or of any, where no other process writes now."""
    for name in [*map(glob.escape, names)] or ["*"]:
        for left in folder.glob(f".{name}.{_TOKEN}"):
            if left.is_symlink() or left.is_file():
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn an errno into a message about what could not be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        wrapped = isinstance(error, SafetensorError) and re.search(r"serializing.*\(os error (\d+)\)", str(error))
        number = int(wrapped[1]) if wrapped else number  # safetensors has one class for all, and for reading too
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise EdgepeftError(
                f"no space left on the disk while writing {target}; nothing was changed. Free some space, then repeat."
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise EdgepeftError(
                f"{target} cannot be written ({os.strerror(number)}). Give this user the right to write there, or work "
                "on a copy."
            ) from error
        if number == errno.EBUSY:  # a mount within one file system, which `check_replaceable` does not see
            raise EdgepeftError(f"{target} is mounted and cannot be replaced; choose a folder inside it.") from error
        if wrapped:
            raise EdgepeftError(f"{target} cannot be written ({error}).") from error
        raise


def _beside(path: Path) -> Path:
    """A name for what is to become ``path``: hidden, and not taken."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN_BYTES)}")


@contextlib.contextmanager
def _flocked(folder: Path) -> Iterator[None]:
    """Hold flock(2) on a folder of this user's, which the kernel ends with the process."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user's", str(folder))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _swap_in(temporary: Path, path: Path) -> None:
    """Rename ``temporary`` to ``path``; an old folder is exchanged with it, or moved aside first, and removed last."""
    if not path.exists():
        temporary.rename(path)
        return
    if _exchanged(temporary, path):
        shutil.rmtree(temporary, ignore_errors=True)
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


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the two folders have changed places in one step, so that there is one at each name at any moment.

    By Linux' renameat2(2), which Python does not have; some file systems (vfat, NFS) cannot.
    """
    import ctypes

    at_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(at_folder, os.fsencode(one), at_folder, os.fsencode(other), exchange) == 0

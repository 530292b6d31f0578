"""Folders that are costly to make, kept for the next process: whole or absent, the least recently used first to go.

Two flock(2) locks, which a killed process cannot leave behind: an exclusive one on the store while a folder
is made or removed, and a shared one on each entry for as long as a process uses it.  The package filelock
has no shared lock but an SQLite transaction kept open, hence the standard library's ``fcntl``.
"""

import contextlib
import ctypes
import json
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from edgepeft.common.atomic import new_folder
from edgepeft.common.resources import file_identity, private_folder

# Locked by those who use the entry; its modification time is the entry's last use, its content the other files as they
# were found sound, and since which start of the system.
_IN_USE = "in-use"
_LOCK = "lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux's: another one after each start


class Held:
    """An entry that is not removed until it is released or garbage collected."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._release = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        self._release()


class Store:
    """Entries ``root/<key>/`` of at most ``limit_bytes`` together; one in use is never removed for it.

    One that was found sound is not looked at again while the system holds all of its files in memory: what a disk loses
    is seen by the process that reads it from there.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root, self.limit_bytes = root, limit_bytes

    def hold(self, key: str, build: Callable[[Path], None], sound: Callable[[Path], bool]) -> Held:
        """The entry of that key, built first unless there is a sound one; several processes build it once."""
        private_folder(self.root)
        if (held := self._existing(key, sound)) is not None:
            return held
        import fcntl  # where there is none, what looks for an entry has said so

        with (self.root / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = self._existing(key, sound)  # another process may have built it while this one waited
            if held is None:
                for left in filter(Path.is_dir, self.root.glob(".*")):  # half made by one that was killed
                    shutil.rmtree(left, ignore_errors=True)
                with new_folder(self.root / key, force=True) as folder:
                    build(folder)
                    (folder / _IN_USE).touch()
                held = self._existing(key, sound)
                self._evict()
        if held is None:
            raise OSError(f"{self.root / key} is not what was just written there.")
        return held

    def _existing(self, key: str, sound: Callable[[Path], bool]) -> Held | None:
        path = self.root / key / _IN_USE
        if (descriptor := _shared(path)) is None:
            return None
        held = Held(path.parent, descriptor)
        if (now := _state(held.folder)) is None or not _was_compared(held.folder, now):
            if not sound(held.folder):
                held.release()
                return None
            if now is not None:
                with contextlib.suppress(OSError):  # then it is looked at again
                    path.write_text(json.dumps(now))
        with contextlib.suppress(OSError):  # a folder that cannot be written is used as it is
            os.utime(path)
        return held

    def _evict(self) -> None:
        """Remove entries that no process uses, the least recently used first, until the rest is within the limit."""
        import fcntl

        sizes = {
            used.parent: sum(path.stat().st_size for path in used.parent.iterdir() if path != used)
            for used in self.root.glob(f"[!.]*/{_IN_USE}")
        }
        total = sum(sizes.values())
        for entry in sorted(sizes, key=lambda entry: (entry / _IN_USE).stat().st_mtime_ns):
            if total <= self.limit_bytes:
                return
            with (entry / _IN_USE).open() as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.rename(entry.with_name(f".{entry.name}.old")), ignore_errors=True)
                total -= sizes[entry]


def _state(folder: Path) -> dict[str, str] | None:
    """The identity of each file, and the start of the system; None where that has no name."""
    try:
        files = [path for path in folder.iterdir() if path.name != _IN_USE]
        return {"boot": _BOOT.read_text().strip(), **{path.name: file_identity(path) for path in files}}
    except OSError:
        return None


def _was_compared(folder: Path, now: Mapping[str, str]) -> bool:
    """Whether these very files were found sound since the system started, and lie in memory throughout."""
    try:
        if json.loads((folder / _IN_USE).read_bytes()) != now:
            return False
        return all(_in_memory(folder / name) for name in now if name != "boot")
    except (OSError, ValueError, AttributeError):
        return False


def _in_memory(path: Path) -> bool:
    """Whether the system holds every page of a file in memory, as mincore(2) says."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        content = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-content.size // mmap.PAGESIZE), np.uint8)
        begin, n_bytes, found = content.ctypes.data, content.size, pages.ctypes.data
        del content  # the mapping closes only when nobody looks into it
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(n_bytes), ctypes.c_void_p(found))
        return not failed and bool((pages & 1).all())


def _shared(path: Path) -> int | None:
    """A descriptor with a shared lock on the file that is at ``path`` now; None where there is none."""
    try:
        import fcntl
    except ImportError as error:
        raise OSError("this system has no flock(2)") from error
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # removed or replaced while this one waited for the lock

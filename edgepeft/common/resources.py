"""Files: where shipped data and caches lie, how one is told from another, and whether it still is what was written.

Those from elsewhere that are read whole, below: their bytes and parts are counted before anything is made of them.
What is too much is an ``OSError`` (EFBIG) with its reason, what is no such document a ``ValueError``: as for any other
file that cannot be read.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, EdgepeftError

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent
_CHECKSUMS = "checksums.json"  # of the other files of a folder
_PART, _BLOCK = 16 << 20, 1 << 20  # bytes
_POINTER, _POINTER_BYTES = b"version ", 1024  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_READERS = 4  # zlib lets other threads run meanwhile


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
    """The folder of caches: ``EDGEPEFT_CACHE``, or ``edgepeft`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
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


def private_folder(path: Path) -> Path:
    """The folder itself, made where it is missing, with nobody else's access to what is kept in it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):  # root may write anywhere
        raise OSError(
            errno.EPERM, f"{path} belongs to user {status.st_uid}; set EDGEPEFT_CACHE to a folder of your own"
        )
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def file_identity(path: Path) -> str:
    """A text that changes whenever the file is replaced or written to: its place, size and times; empty without one."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in one pass of constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pointer_note(source: Path | bytes) -> str:
    """What to do about a file, or about its first bytes, that is Git LFS' pointer to one; nothing for any other."""
    start = source if isinstance(source, bytes) else b""
    if isinstance(source, Path):
        with contextlib.suppress(OSError):
            start = bytes_at(source, _POINTER_BYTES)
    return " It is Git LFS' pointer to the file: git lfs pull fetches that." if start.startswith(_POINTER) else ""


def checksum(path: Path, n_bytes: int | None = None) -> str:
    """CRC-32 of each 16 MiB of a file, or of its first ``n_bytes``, in hexadecimal.

    For what this machine keeps for itself: it finds every one or two bits that a disk or a memory card lost, at twice
    the speed of SHA-256 where a processor has instructions for that, and more where it has none.  Who can write the
    file can write this too.
    """
    with path.open("rb") as file, ThreadPoolExecutor(_READERS) as readers:
        end = os.fstat(file.fileno()).st_size if n_bytes is None else n_bytes

        def crc32(begin: int) -> str:
            crc, at, last = 0, begin, min(begin + _PART, end)
            while at < last and (block := os.pread(file.fileno(), min(_BLOCK, last - at), at)):
                crc, at = zlib.crc32(block, crc), at + len(block)
            return f"{crc:08x}"

        return "".join(readers.map(crc32, range(0, end, _PART)))


def write_checksums(folder: Path) -> None:
    """Note the checksums of all files in a folder of a cache, in a file of their own there."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _CHECKSUMS)
    found = {str(path.relative_to(folder)): checksum(path) for path in files}
    (folder / _CHECKSUMS).write_text(json.dumps(found, indent=2) + "\n")


def whole(folder: Path) -> bool:
    """Whether every file of which ``write_checksums`` noted one is there, as it was written."""
    try:
        noted = dict(json.loads((folder / _CHECKSUMS).read_bytes()))
        return bool(noted) and all(checksum(folder / name) == written for name, written in noted.items())
    except (OSError, ValueError, TypeError):
        return False


_MAX_BYTES = 16 << 20  # of JSON: a manifest with ten thousand tasks
_MAX_PARTS = 1_000_000  # lists, objects and their members, which take a hundred bytes each
_CHARACTERS_OF_A_PART = 16  # of rows
_TOML_BYTES = 512 << 10  # a second of tomllib, which is written in Python
_TOML_KEY = 32  # parts of a key; the time they take is their number's square
_NUL = "it has a NUL in a text, and no name or path has one"
_KEY = r"""(?:"[^"\n]*+"|'[^'\n]*+'|(?<![\w-])[\w-]++)"""
_LONG_KEY = re.compile(rf"(?:{_KEY}[ \t]*+\.[ \t]*+){{{_TOML_KEY}}}")


def bytes_at(path: Path, most: int = _MAX_BYTES) -> bytes:
    """A regular file's bytes, of which as many may begin a part of JSON."""
    # Without waiting: a FIFO would keep its reader.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _too_much(path, "is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_much(path, f"has more than {most:,} bytes")
    if len(content) > _MAX_PARTS and sum(map(content.count, (b",", b"[", b"{"))) > _MAX_PARTS:
        raise _too_much(path, f"has more than {_MAX_PARTS:,} lists, objects and members")
    return content


def json_at(path: Path, most: int = _MAX_BYTES, *, names_files: bool = False) -> Any:
    """The JSON document in a file; one that ``names_files`` has no NUL in its texts."""
    content = bytes_at(path, most)
    if names_files and rb"\u0000" in content:
        raise ValueError(_NUL)
    return _parsed(content, json.loads)


def json_rows(text: str) -> Any:
    """The JSON document in a text of rows, which may have more lists and objects the longer it is."""
    found, most = text.count("[") + text.count("{"), _MAX_PARTS + len(text) // _CHARACTERS_OF_A_PART
    if found > most:
        raise ValueError(f"it has more than {most:,} lists and objects")
    return _parsed(text, _DECODER.decode)


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of these members; refuse a key with two values, since nobody knows which is meant."""
    found = dict(members)
    if len(found) < len(members):
        for name, value in members:
            if repr(value) != repr(found[name]):  # NaN is no other NaN
                raise ValueError(f"it has the key {name!r:.80} twice, with two values")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_each_once)  # ``json.loads`` would make one for each row


def _parsed(content: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(content)
    except RecursionError:
        raise ValueError("its lists and objects lie too deep in each other") from None


def toml_at(path: Path) -> dict[str, Any]:
    """The TOML document in a file; plans, profiles and scenarios name files, so no text has a NUL."""
    text = bytes_at(path, _TOML_BYTES).decode("utf-8-sig")
    if r"\u0000" in text or r"\U00000000" in text:
        raise ValueError(_NUL)
    if _LONG_KEY.search(text):
        raise ValueError(f"it has a key of more than {_TOML_KEY} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its lists and tables lie too deep in each other") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The same; DataError where the file cannot be read or is no TOML."""
    try:
        return toml_at(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start}).") from error
    except ValueError as error:  # endless digits: not a TOMLDecodeError
        raise DataError(f"{path} is not TOML: {error}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def _too_much(path: Path, why: str) -> OSError:
    return OSError(errno.EFBIG, f"it {why}", str(path))

"""Files from elsewhere that are read whole: their bytes and parts are counted before anything is made of them.

What is too much is an ``OSError`` (EFBIG) with its reason, what is no such document a ``ValueError``: as for any other
file that cannot be read.
"""

import errno
import json
import os
import re
import stat
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError

_MAX_BYTES = 16 << 20  # of JSON: a manifest with ten thousand tasks
_MAX_PARTS = 1_000_000  # lists, objects and their members, which take a hundred bytes each
_CHARACTERS_OF_A_PART = 16  # of rows
_TOML_BYTES = 512 << 10  # a second of tomllib, which is written in Python
_TOML_KEY = 32  # parts of a key; the time they take is their number's square
_NUL = "it has a NUL in a text, and no name or path has one"
_PART = r"""(?:"[^"\n]*+"|'[^'\n]*+'|(?<![\w-])[\w-]++)"""
_LONG_KEY = re.compile(rf"(?:{_PART}[ \t]*+\.[ \t]*+){{{_TOML_KEY}}}")


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
    return _parsed(content)


def json_rows(text: str) -> Any:
    """The JSON document in a text of rows, which may have more lists and objects the longer it is."""
    found, most = text.count("[") + text.count("{"), _MAX_PARTS + len(text) // _CHARACTERS_OF_A_PART
    if found > most:
        raise ValueError(f"it has more than {most:,} lists and objects")
    return _parsed(text)


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these members; of a key that is there twice nobody knows which is meant."""
    found = dict(members)
    if len(found) < len(members):
        ((twice, _),) = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"it has the key {twice!r:.80} twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_each_once)  # ``json.loads`` would make one for each row


def _parsed(content: str | bytes) -> Any:
    text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
    try:
        return _DECODER.decode(text)
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

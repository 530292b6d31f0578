"""Which root a board trusts: one that is given, or that was given before and is kept outside of the bundle.

What lies in a bundle's ``.fleet`` may have come with the bundle, by whomever.  So it is checked against that root, and
where it is of another one it is dropped, the state of what was taken up with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from pathlib import Path

from edgepeft.common.atomic import write_atomically
from edgepeft.common.bounded import bytes_at
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.resources import cache_folder, private_folder
from edgepeft.fleet.layout import METADATA
from edgepeft.fleet.state import STATE_FILE, WORK

__all__ = ["forget", "pin", "trusted_root"]

_MOST_ROOT_BYTES = 512_000  # as tuf's
_NO_ROOT = (OSError, ValueError, KeyError, TypeError)
_HISTORY = "root_history"  # as tuf names it, in the folder of metadata


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
    content = bytes_at(path, _MOST_ROOT_BYTES)
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

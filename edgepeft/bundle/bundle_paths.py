"""What may lie in a bundle's folder: regular files of bounded sizes, and links that stay in it.

Looked at before anything is opened: a FIFO keeps its reader waiting, a device has no end, and a file that is larger
than its kind can be would be read, hashed and parsed as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from edgepeft.backbones.emit import WEIGHTS_FILES
from edgepeft.common.errors import BundleError
from edgepeft.common.task_name import WEIGHTS

_MIB = 1 << 20
_TEXT_BYTES = 16 * _MIB  # of a manifest with ten thousand tasks; configs and cards are kilobytes
_TOKENIZER_BYTES = 128 * _MIB  # the largest vocabularies of today take 35 MB
_CHECK_BYTES = 64 * _MIB  # of 64 rows' token ids and logits
_GRAPH_BYTES = 64 * _MIB  # of a graph without weights: a thousand layers
# A delta replaces each float32 weight at most once; weights of 4 bits and their scales take 5 of its 32 bits.
_OF_WEIGHTS = 8


def check_folder(folder: Path) -> None:
    """See that all of a bundle's folder can be read without surprise; nothing is opened."""
    inside = folder.resolve()
    weights_bytes = sum(path.stat().st_size for name in WEIGHTS_FILES.values() if (path := inside / name).is_file())
    for path in (Path(parent, name) for parent, folders, files in os.walk(inside) for name in (*folders, *files)):
        shown = folder / path.relative_to(inside)
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
            raise BundleError(
                f"{shown} is a link that leads out of the bundle. A bundle holds its own files; copy it with its links "
                "followed: cp -rL."
            )
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a link to nothing
            try:
                status = path.stat()
            except OSError as error:
                if error.errno == errno.ELOOP:  # a link to itself: whoever reads it gets this error
                    continue
                raise
            _check(status, shown, _most_bytes(path.name, weights_bytes))


def check_file(path: Path, weights: Path) -> None:
    """See that a task's file from elsewhere is a regular one of a possible size, for a backbone of ``weights``."""
    _check(path.stat(), path, _most_bytes(path.name, weights.stat().st_size))


def _check(status: os.stat_result, shown: Path, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{shown} is no regular file. Do not use what it came with.")
    if most is not None and status.st_size > most:
        raise BundleError(
            f"{shown} has {status.st_size:,} bytes, and such a file has at most {most:,}. Do not use what it came with."
        )


def _most_bytes(name: str, weights_bytes: int) -> int | None:
    """How large a file of that name can be; None for what is not read whole."""
    if name.endswith(".check.safetensors"):
        return _CHECK_BYTES
    if name.endswith(WEIGHTS):
        return _GRAPH_BYTES + _OF_WEIGHTS * weights_bytes
    if name.endswith(".onnx"):
        return _GRAPH_BYTES + (0 if name == "backbone.onnx" else _OF_WEIGHTS * weights_bytes)
    if name == "tokenizer.json":
        return _TOKENIZER_BYTES
    return _TEXT_BYTES if name.endswith((".json", ".sig")) else None

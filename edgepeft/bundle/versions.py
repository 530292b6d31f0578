"""A task's files and those of its previous version; the manifest alone decides which are in force.

    tasks/<task>.onnx, .check.safetensors, .train.onnx, .weights.safetensors    the version in force
    tasks/versions/<task>.<sha256 of the hashes>.onnx, ...  the one before; during a replacement, the new one

A replacement writes the new files beside the old ones, then the manifest, then moves them into place.  A
file counts only if it has the hash that the manifest names, so whenever the power goes, one whole version is
in force, and a reader with an older manifest still finds its own.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgepeft.bundle.manifest import TaskEntry, TemplateEntry
from edgepeft.common.atomic import replacing, write_atomically
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import CHECK, GRAPH, SUFFIXES, TRAINING, WEIGHTS

VERSIONS = "versions"
Content = bytes | Path  # of a file; a path where it may be too large for memory


def hashes(entry: TaskEntry | TemplateEntry) -> dict[str, str]:
    """The suffix of each of a task's or template's files -> its SHA-256."""
    weights = entry.weights_sha256 if isinstance(entry, TaskEntry) else None
    named = {GRAPH: entry.sha256, CHECK: entry.check_sha256, TRAINING: entry.train_sha256, WEIGHTS: weights}
    return {suffix: sha256 for suffix, sha256 in named.items() if sha256}


def digest(entry: TaskEntry) -> str:
    """Of the whole of a task: of all files that say what it answers, their cards among them."""
    return _of_all({**hashes(entry), TRAINING: ""}.values())


def _of_all(sha256s: Iterable[str]) -> str:
    return hashlib.sha256("".join(sha256s).encode()).hexdigest()


def locate(folder: Path, task: str, entry: TaskEntry, suffix: str) -> Path:
    """Where the file that ``entry`` names lies, by default its usual place; ``folder`` is the bundle's ``tasks``."""
    usual, kept = folder / f"{task}{suffix}", _kept(folder, task, entry, suffix)
    with contextlib.suppress(OSError):
        return kept if kept.is_file() and not _is(usual, hashes(entry)[suffix]) else usual
    return usual


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def write_task_file(path: Path, content: Content) -> None:
    """Write a file of a task, whole or not at all."""
    if isinstance(content, bytes):
        write_atomically(path, content)
        return
    with replacing(path) as temporary:
        shutil.copyfile(content, temporary)


def content_of(folder: Path, task: str, entry: TaskEntry) -> dict[str, Content]:
    """The files of a version, by suffix."""
    files = {sha256: locate(folder, task, entry, suffix) for suffix, sha256 in hashes(entry).items()}
    for expected, path in files.items():
        if not _is(path, expected):
            raise BundleError(f"{path} is missing or altered; that version of task {task} is lost.")
    return read_version(entry, files)


def read_version(entry: TaskEntry, files: Mapping[str, Path]) -> dict[str, Content]:
    """The files of a version, by suffix; ``files`` says where each SHA-256's lies."""
    found = {suffix: files[sha256] for suffix, sha256 in hashes(entry).items()}
    return {suffix: path if suffix == WEIGHTS else path.read_bytes() for suffix, path in found.items()}


def keep(folder: Path, task: str, entry: TaskEntry, content: Mapping[str, Content]) -> None:
    """Write a version's files under ``versions``, where nothing replaces them."""
    for suffix in hashes(entry):
        if not (path := _kept(folder, task, entry, suffix)).is_file():
            write_task_file(path, content[suffix])


def settle(folder: Path, task: str, entry: TaskEntry) -> None:
    """Move the version in force into its usual place, and remove all but its predecessor; the manifest is written."""
    for suffix, content in content_of(folder, task, entry).items():
        usual = folder / f"{task}{suffix}"
        if content != usual and not _is(usual, hashes(entry)[suffix]):
            write_task_file(usual, content)
    for suffix in {*SUFFIXES} - {*hashes(entry)}:
        (folder / f"{task}{suffix}").unlink(missing_ok=True)
    before = entry.previous
    drop_versions(folder, task, [] if before is None else [_kept(folder, task, before, s) for s in hashes(before)])


def drop_versions(folder: Path, task: str, but: Iterable[Path] = ()) -> None:
    """Remove a task's files under ``versions``, except those in ``but``."""
    spared = set(but)
    for suffix in SUFFIXES:
        for path in (folder / VERSIONS).glob(f"{task}.*{suffix}"):
            # Another task may be called <task>.<something>; a hash has 64 characters.
            middle = path.name[len(task) + 1 : -len(suffix)]
            if path not in spared and len(middle) == 64:
                path.unlink(missing_ok=True)


def _kept(folder: Path, task: str, entry: TaskEntry, suffix: str) -> Path:
    return folder / VERSIONS / f"{task}.{_of_all(hashes(entry).values())}{suffix}"

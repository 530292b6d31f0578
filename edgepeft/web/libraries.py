"""The JavaScript libraries of a site: npm packages at pinned versions, each file with a hash that is kept here.

They come from a folder that ``npm ci`` filled: the one that is named, or one in the cache, which is filled once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgepeft.common.atomic import replacing
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.resources import cache_folder, package_data, sha256_of

__all__ = ["ORT", "TOKENIZERS", "LibraryFile", "copy_libraries", "installed", "library_files"]

ORT, TOKENIZERS = "onnxruntime-web", "@huggingface/tokenizers"
_PINS = ("package.json", "package-lock.json")


class LibraryFile(NamedTuple):
    """A file of an npm package, and the name that it has in a site."""

    package: str
    version: str
    path: str
    name: str
    sha256: str


def library_files(packages: Sequence[str]) -> list[LibraryFile]:
    """What a site needs of these packages."""
    known: dict[str, dict[str, Any]] = json.loads(package_data("web/libraries.json").read_text(encoding="utf-8"))
    return [
        LibraryFile(package, known[package]["version"], file["path"], file["as"], file["sha256"])
        for package in packages
        for file in known[package]["files"]
    ]


def installed() -> Path:
    """The cache's ``node_modules``, after ``npm ci`` where it is not there yet."""
    folder = cache_folder() / "web" / sha256_of(package_data("web") / _PINS[1])[:16]
    modules = folder / "node_modules"
    if all((modules / file.package / file.path).is_file() for file in library_files([ORT, TOKENIZERS])):
        return modules
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PINS:
        with replacing(folder / name) as new:
            shutil.copyfile(package_data("web") / name, new)
    _run_npm(folder)
    return modules


def _run_npm(folder: Path) -> None:
    command = ["npm", "ci", "--prefix", str(folder), "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"]
    elsewhere = (
        f"On a machine that has npm and a network, run `npm ci --ignore-scripts --omit=dev` in a copy of {folder}, "
        "and name its node_modules: --libraries FOLDER."
    )
    if shutil.which("npm") is None:
        raise EdgepeftError(f"a site needs {ORT} of npm, and npm is not installed here. {elsewhere}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        raise EdgepeftError(f"`{' '.join(command)}` failed: {last[0]} {elsewhere}")


def copy_libraries(modules: Path, packages: Sequence[str], out: Path) -> None:
    """Copy what a site needs of ``modules``, each file after a look at its hash."""
    (out / "lib").mkdir(exist_ok=True)
    for file in library_files(packages):
        source = modules / file.package / file.path
        fill = f"Fill it with `npm ci` by {package_data('web') / _PINS[1]}, or leave --libraries out"
        if not source.is_file():
            lacks = f"{file.package}/{file.path}"
            raise UsageError(f"{modules} is no node_modules with what a site needs: it has no {lacks}. {fill}.")
        shutil.copyfile(source, out / file.name)
        if sha256_of(out / file.name) != file.sha256:
            due = f"{file.package} {file.version}"
            raise UsageError(f"{source} is not the file of {due}, which sites are made with. {fill}.")
    if ORT in packages:
        shutil.copyfile(package_data("web/licences") / f"{ORT}.txt", out / "lib" / "ort.LICENSE.txt")

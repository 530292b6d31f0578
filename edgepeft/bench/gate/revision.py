"""Another version of edgepeft to measure beside this one: a git revision, an installed one, or a release.

Its workers are processes with that version first on their path, and everything else as it is here: the same Python,
ONNX Runtime and NumPy, so that edgepeft alone differs.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgepeft
from edgepeft.common.errors import EdgepeftError, UsageError

__all__ = ["Revision", "open_revision"]

_RELEASE = re.compile(r"\d+(\.\w+)*")
_PROBE = """
import dataclasses, json, edgepeft
from edgepeft.bench.measuring import worker
from edgepeft.bench.planning.job import Job
print(json.dumps({"file": edgepeft.__file__, "version": edgepeft.__version__,
                  "fields": [field.name for field in dataclasses.fields(Job)]}))
"""
_RANDOM = """
import json, sys
from pathlib import Path
from edgepeft.bench.planning.target import random_subject
asked = json.loads(sys.argv[1])
random_subject(asked.pop("name"), Path(asked.pop("folder")), **asked)
"""


@dataclass(frozen=True)
class Revision:
    """A version of edgepeft: the folder that goes on the path, and the fields of a job that its workers know."""

    asked: str
    described: str
    path: Path
    fields: frozenset[str]

    def random_bundle(self, folder: Path, name: str, **options: Any) -> None:
        """Random weights of a named architecture, written by that version's own code.

        Raises:
            EdgepeftError: it cannot.
        """
        asked = {"name": name, "folder": str(folder), **options}
        _run(self.path, self.asked, ["-c", _RANDOM, json.dumps(asked)])


def open_revision(asked: str, work: Path) -> Revision:
    """Find it, and unpack or install it into ``work`` where it is not a folder already.

    Raises:
        UsageError: nothing of that name, or a version that cannot be measured.
    """
    path, described = _found(asked, work)
    facts = json.loads(_run(path, asked, ["-c", _PROBE]))
    if not Path(facts["file"]).resolve().is_relative_to(path.resolve()):
        raise EdgepeftError(f"--against {asked}: {facts['file']} was imported instead of {path}.")
    return Revision(asked, f"{described} (edgepeft {facts['version']})", path, frozenset(facts["fields"]))


def _found(asked: str, work: Path) -> tuple[Path, str]:
    folder = Path(asked)
    if asked and (folder / "edgepeft" / "__init__.py").is_file():
        return folder.resolve(), f"the package in {asked}"
    repository = Path(edgepeft.__file__).resolve().parent.parent
    for place in (repository, Path.cwd()):
        commit = _commit(asked, place) if asked else None
        if commit is not None:
            _unpack(commit, place, work)
            return work, f"commit {commit[:12]}"
    if _RELEASE.fullmatch(asked):
        # That release alone; what it needs is here already.
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(work), f"edgepeft=={asked}"]
        _output(command, f"--against {asked}: pip cannot install edgepeft=={asked}")
        return work, f"release {asked}"
    raise UsageError(
        f"--against {asked}: neither a git revision of {repository} or of this folder, nor a release such as 0.1.0, "
        "nor a folder that holds the package edgepeft."
    )


def _git(place: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, check=False)
    except OSError:  # no git here
        return None


def _commit(asked: str, place: Path) -> str | None:
    # --end-of-options: a name that begins with a dash must not become one.
    done = _git(place, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked}^{{commit}}")
    if done is None or done.returncode:
        return None
    commit = done.stdout.decode().strip()
    # Another project's folder has revisions too.
    holds = _git(place, "cat-file", "-e", f"{commit}:edgepeft/__init__.py")
    return commit if holds is not None and holds.returncode == 0 else None


def _unpack(commit: str, place: Path, work: Path) -> None:
    done = _git(place, "archive", "--format=tar", commit)
    if done is None or done.returncode:
        raise EdgepeftError(f"git cannot unpack {commit}: {done.stderr.decode().strip() if done else 'no git'}.")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(work, filter="data")
        else:  # Python 3.11 before 3.11.4 knows no filters; git gives names inside the checkout only
            archive.extractall(work)


def _run(path: Path, asked: str, arguments: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path), "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    # -P: a checkout in the current folder must not come before the version that was asked for.
    refused = f"--against {asked}: that version cannot be measured beside this one"
    return _output(["-P", *arguments], refused, environment)


def _output(arguments: list[str], refused: str, environment: Mapping[str, str] = os.environ) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(environment))
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise UsageError(f"{refused} ({last[:300]}).")
    return done.stdout

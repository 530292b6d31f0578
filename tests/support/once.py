"""What all of pytest's workers read is made by one of them: writing a training graph takes seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, which ``make`` fills in the first worker that asks; not to be written to."""
    base = factory.getbasetemp()
    # A worker of xdist has a folder of its own in the run's.
    root = (base.parent if base.name.startswith("popen-") else base) / "once"
    root.mkdir(exist_ok=True)
    return made_beside(root / name, make)


def made_beside(folder: Path, make: Callable[[Path], object]) -> Path:
    """That folder, in one that all workers see."""
    whole = folder.with_name(f"{folder.name}.whole")
    with FileLock(f"{folder}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder

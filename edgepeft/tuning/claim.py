"""A task held for one run: the lock, and the folder of its checkpoints, ``.tune/<task>/`` in the bundle."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.data.training_loop.checkpoint import latest

__all__ = ["claim", "discard"]

_FOLDER = ".tune"


@contextlib.contextmanager
def claim(bundle: Path, task: str) -> Iterator[Path]:
    """Hold the task for one run; yields the folder of its checkpoints.  A dead process holds nothing."""
    folder = bundle / _FOLDER / task
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise EdgepeftError(
            f"{bundle} cannot be written ({error.strerror}); tuning keeps its checkpoints and its result there. "
            "Copy the bundle to a place that can be written."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"task {task} of {bundle} is being tuned by another process; wait for it, or tune another task."
        ) from None
    try:
        yield folder
    finally:
        if latest(folder) is None:
            discard(folder)
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Remove every checkpoint of a run that is over."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another task has one
        folder.parent.rmdir()

"""A task held for one run: the lock, and the folder of its checkpoints, ``.tune/<task>/`` in the bundle."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgepeft.common.errors import EdgepeftError
from edgepeft.common.own_folder import LOCK_FILE, held_folder
from edgepeft.data.training_loop.checkpoint import latest

__all__ = ["claim", "discard"]

_FOLDER = ".tune"


@contextlib.contextmanager
def claim(bundle: Path, task: str, wait_s: float = 0) -> Iterator[Path]:
    """Hold the task for one run; yields the folder of its checkpoints.  A dead process holds nothing."""
    waited = f" (waited {wait_s:g} s for it)" if wait_s else ""
    busy = f"task {task} of {bundle} is being tuned by another process{waited}; wait for it, or tune another task."
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(held_folder(bundle, _FOLDER, task, busy=busy, wait_s=wait_s))
        except OSError as error:
            raise EdgepeftError(
                f"{bundle} cannot be written ({error.strerror}); tuning keeps its checkpoints and its result there. "
                "Copy the bundle to a place that can be written."
            ) from error
        try:
            yield folder
        finally:
            if latest(folder) is None:
                discard(folder)


def discard(folder: Path) -> None:
    """Remove every checkpoint of a run that is over."""
    for path in folder.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

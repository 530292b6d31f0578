"""Where a run on the board stands: one safetensors file, replaced atomically, with the plain facts in its metadata.

``.tune/<task>/<step>.safetensors`` in the bundle.  A file is whole or not there, and older ones go only when the
new one is on the disk, so whenever the power goes, the newest file is a whole checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from edgepeft.errors import BundleError, EdgepeftError, UsageError
from edgepeft.resources import write_atomically
from edgepeft.runtime.tuning.adamw import AdamW
from edgepeft.runtime.tuning.step import Arrays

__all__ = ["Position", "claim", "discard", "latest", "load_checkpoint", "save_checkpoint"]

FORMAT = "edgepeft.tune/1"
_FOLDER = ".tune"


@dataclasses.dataclass
class Position:
    """Steps done, and the best evaluation: (score, minus its loss), its step and its tensors."""

    step: int = 0
    best: tuple[float, float] | None = None
    best_step: int = 0
    best_tensors: Arrays = dataclasses.field(default_factory=dict)
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def claim(bundle: Path, task: str) -> Iterator[Path]:
    """Hold the task for one run; yields the folder of its checkpoints.  A dead process holds nothing.

    Raises:
        UsageError: another run holds it.
        EdgepeftError: the bundle cannot be written.
    """
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


def latest(folder: Path) -> Path | None:
    """The newest checkpoint."""
    files = (path for path in folder.glob("*.safetensors") if path.stem.isdigit())
    return max(files, key=lambda path: int(path.stem), default=None)


def discard(folder: Path) -> None:
    """Remove every checkpoint of a run that is over."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another task has one
        folder.parent.rmdir()


def save_checkpoint(
    folder: Path, position: Position, trained: Arrays, optimizer: AdamW, asked: Mapping[str, Any]
) -> None:
    """Write where the run stands; ``asked`` is what it was asked to do, compared by a resumed one.

    Raises:
        EdgepeftError: no space left or no permission; the checkpoint before is still there.
    """
    target = folder / f"{position.step}.safetensors"
    older = [path for path in folder.glob("*.safetensors") if path != target]
    parts = {"delta": trained, "first": optimizer.first, "second": optimizer.second, "best": position.best_tensors}
    tensors = {f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    plain = {
        "step": position.step,
        "best": position.best,
        "best_step": position.best_step,
        "history": position.history,
        "asked": asked,
    }
    write_atomically(target, save(tensors, metadata={"format": FORMAT, "state": json.dumps(plain)}))
    for path in older:
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path, trained: Arrays, optimizer: AdamW, asked: Mapping[str, Any]) -> Position:
    """Put parameters and optimizer where they were.

    Raises:
        UsageError: the run that wrote it was asked something else; says what.
        BundleError: damaged, or of another version.
    """
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = json.loads(metadata["state"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BundleError(f"{path} is damaged ({error}); start anew with --force.") from error
    if metadata.get("format") != FORMAT:
        raise BundleError(f"{path} is a checkpoint of format {metadata.get('format')!r}; this version reads {FORMAT}.")
    _require_same(path, state["asked"], json.loads(json.dumps(asked)))
    parts: dict[str, Arrays] = {"delta": {}, "first": {}, "second": {}, "best": {}}
    for name, tensor in stored.items():
        part, _, rest = name.partition(":")
        parts[part][rest] = tensor.copy()
    trained.update(parts["delta"])
    optimizer.first, optimizer.second, optimizer.steps = parts["first"], parts["second"], state["step"]
    return Position(
        step=state["step"],
        best=None if state["best"] is None else (state["best"][0], state["best"][1]),
        best_step=state["best_step"],
        best_tensors=parts["best"],
        history=state["history"],
    )


def _require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    differing = [
        f"{name} (then {json.dumps(before.get(name))[:24]}, now {json.dumps(now.get(name))[:24]})"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if differing:
        raise UsageError(
            f"{path} was written by a run with other arguments or data: {', '.join(differing)}. "
            "Repeat the first command with --resume, or start anew with --force."
        )

"""The output folder of a run: what may be there before, and what is written at the end."""

from __future__ import annotations

from pathlib import Path

from edgepeft.bundle.card import CARD_FILE, EVALUATION_FILE, TENSORS_FILE
from edgepeft.common.atomic import refuse_mount_point
from edgepeft.common.errors import UsageError
from edgepeft.data.training_loop.checkpoint import latest

__all__ = ["FOLDER", "prepare_output"]

FOLDER = "checkpoint"
PICTURES = {"curve.png", "curve.svg"}  # of a learning curve
OURS = {CARD_FILE, TENSORS_FILE, EVALUATION_FILE, FOLDER, *PICTURES}


def prepare_output(out: Path, *, resume: bool, force: bool) -> Path | None:
    """The checkpoint to continue from, or None for a new run; touches nothing.

    Raises:
        UsageError: the folder holds something, and neither flag fits it; the message says which would. Or it is a
            mount point.
    """
    if resume and force:
        raise UsageError("--resume and --force exclude each other: continue what is there, or replace it.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; an output folder is needed. Choose another name.")
    refuse_mount_point(out)
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.exists() else []
    checkpoint = latest(out / FOLDER)
    if resume:
        if checkpoint is None:
            holds = "a finished delta" if CARD_FILE in names else "no checkpoint"
            raise UsageError(f"there is nothing to resume: {out} holds {holds}. Leave --resume out to start a run.")
        return checkpoint
    foreign = [name for name in names if name not in OURS]
    if foreign:
        raise UsageError(f"{out} holds {foreign[0]}, which is no part of a delta; choose another folder.")
    if checkpoint is not None and not force:
        raise UsageError(f"{out} holds an interrupted run. Give --resume to continue it, or --force to start anew.")
    if set(names) - {FOLDER} and not force:  # an empty one: the disk was full before the first checkpoint
        raise UsageError(f"{out} exists already. Give --force to replace it, or choose another folder.")
    return None

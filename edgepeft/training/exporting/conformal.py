"""What a delta's answers are to promise, chosen at export by the evaluation rows' logits that its folder keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edgepeft.bundle.card import EVALUATION_FILE, DeltaCard, read_card
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.tasks._certainty import Promise
from edgepeft.tasks.base import TaskType

__all__ = ["promising_cards"]


def promising_cards(deltas: Sequence[Path], promise: Promise) -> Mapping[Path, DeltaCard]:
    """The card of each delta with this promise and its threshold; none where nothing is promised.

    Raises:
        UsageError: a delta's answers cannot have it, its rows are too few, or it keeps none.
        BundleError: what it keeps is damaged.
    """
    return {path: _promising(path, promise) for path in deltas} if promise else {}


def _promising(folder: Path, promise: Promise) -> DeltaCard:
    option = f"--{next(iter(promise))}"
    if folder.suffix == ".onnx":
        raise UsageError(
            f"{option} is chosen by evaluation rows, which {folder} does not keep; give the delta's folder."
        )
    card = read_card(folder)
    kind, path = card.task_kind, folder / EVALUATION_FILE
    if not kind.calibrates:
        kind.promising(promise, 0)
    if not path.is_file():
        raise UsageError(
            f"{option} is chosen by evaluation rows, and {folder} keeps none: it has no {EVALUATION_FILE}, for it was "
            "imported, or trained by an earlier version. Train it with this one, or give the option to edgepeft tune."
        )
    logits, targets = _read(path, kind)
    found = kind.promising(promise, len(targets)).calibrated(targets, logits)
    return card.model_copy(update={"chosen": dict(found.chosen)})


def _read(path: Path, kind: TaskType) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        found = load_file(path)
        logits, targets = found["logits"], found["targets"]
        right, each = kind.right_of(targets, logits)
    except (SafetensorError, OSError, KeyError, IndexError) as error:
        raise BundleError(f"{path} is damaged ({error}); train the delta again.") from error
    sound = (right.ndim, each.ndim) == (1, 2) and len(right) == len(each) and logits.shape[-1] == kind.n_outputs
    if not sound or not np.isfinite(logits).all() or targets.dtype.kind != "i" or not _are_columns(right, each):
        raise BundleError(
            f"{path} does not hold logits of {kind.described} and which is right in each row; train it again."
        )
    return logits, targets


def _are_columns(right: NDArray[np.int64], each: NDArray[np.float32]) -> bool:
    return bool(((right >= 0) & (right < each.shape[1])).all())

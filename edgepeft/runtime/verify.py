"""Parity replayed without torch: a task's check file against what ONNX Runtime gives here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from platform import machine
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgepeft.errors import BundleError, VerificationFailed
from edgepeft.profiles.host import isa_flags
from edgepeft.runtime.manifest import Verification

__all__ = ["TOLERANCE", "compare", "pack_check", "read_check", "replay", "require_passed", "row_groups"]

TOLERANCE = 1e-4  # largest absolute difference of a logit
GROUP_ROWS = 8  # attention of 64 rows of 512 tokens would need 800 MB

Inputs = Mapping[str, NDArray[np.int64]]
Run = Callable[[Inputs], NDArray[np.float32]]


def row_groups(inputs: Inputs) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[np.int64]]]]:
    """Groups of rows of like length: (their indices, their inputs cut to the longest of them)."""
    lengths = inputs["attention_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), GROUP_ROWS):
        rows = order[start : start + GROUP_ROWS]
        longest = int(lengths[rows].max())
        yield rows, {name: np.ascontiguousarray(values[rows, :longest]) for name, values in inputs.items()}


def run_in_groups(run: Run, inputs: Inputs) -> NDArray[np.float32]:
    """Logits [rows, outputs] in the rows' own order."""
    parts = [(rows, run(group)) for rows, group in row_groups(inputs)]
    logits = np.empty((len(inputs["attention_mask"]), parts[0][1].shape[1]), np.float32)
    for rows, values in parts:
        logits[rows] = values
    return logits


def pack_check(inputs: Inputs, logits: NDArray[np.float32]) -> bytes:
    """The content of a check file: int64 [rows, length] by input name, float32 ``logits`` [rows, outputs]."""
    return save({**inputs, "logits": np.ascontiguousarray(logits, np.float32)}, metadata={"format": "edgepeft.check/1"})


def read_check(content: bytes, where: str) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float32]]:
    """Token ids and masks, and PyTorch's logits.

    Raises:
        BundleError: damaged, or without what a check needs.
    """
    try:
        tensors: dict[str, Any] = load(content)
    except (SafetensorError, ValueError) as error:
        raise BundleError(f"{where} is not a check file ({error}).") from error
    logits = tensors.pop("logits", None)
    shapes = {value.shape for value in tensors.values()}
    sound = logits is not None and logits.ndim == 2 and "input_ids" in tensors and "attention_mask" in tensors
    if not sound or len(shapes) != 1 or len(logits) != len(tensors["input_ids"]) or not len(logits):
        raise BundleError(f"{where} is not a check file: it needs input_ids, attention_mask and logits of equal rows.")
    return tensors, logits


def replay(run: Run, inputs: Inputs, reference: NDArray[np.float32]) -> Verification:
    """Run the check's rows and compare with PyTorch's logits."""
    return compare(reference, run_in_groups(run, inputs))


def compare(reference: NDArray[np.float32], found: NDArray[np.float32]) -> Verification:
    """Largest logit difference, and equal decisions wherever the reference's margin exceeds twice the tolerance."""
    if reference.shape != found.shape:
        raise VerificationFailed(f"the check has logits {list(reference.shape)}, the model gives {list(found.shape)}.")
    agreement, undecided = 1.0, 0
    if reference.shape[1] > 1:
        best = np.sort(reference, axis=1)
        decided = best[:, -1] - best[:, -2] > 2 * TOLERANCE
        undecided = int((~decided).sum())
        equal = reference.argmax(axis=1) == found.argmax(axis=1)
        agreement = float(equal[decided].mean()) if decided.any() else 1.0
    return Verification(
        rows=len(reference),
        max_abs_difference=float(np.abs(reference.astype(np.float64) - found).max()),
        tolerance=TOLERANCE,
        agreement=agreement,
        undecided=undecided,
        isa=" ".join((machine(), *isa_flags())),
        onnxruntime=metadata.version("onnxruntime"),
    )


REFERENCES = {"pytorch": "PyTorch", "training graph": "its training graph"}


def require_passed(task: str, result: Verification) -> None:
    """See that a comparison is within tolerance.

    Raises:
        VerificationFailed: says by how much it is not.
    """
    # Not "difference > tolerance": a NaN must fail.
    if not (result.max_abs_difference <= result.tolerance and result.agreement == 1.0):
        raise VerificationFailed(
            f"task {task}: ONNX Runtime differs from {REFERENCES[result.reference]} by "
            f"{result.max_abs_difference:.3g} on its {result.rows} check rows (tolerance {result.tolerance:.0e}), with "
            f"{result.agreement:.1%} of the decisions equal."
        )

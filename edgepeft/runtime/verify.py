"""Parity replayed without torch: a task's check file against what ONNX Runtime gives here.

What may differ depends on how the weights are stored.  In float32 nothing but the last digits; a delta rounded
to half precision keeps every clear decision; 8-bit weights move logits by what the processor's instructions and
the batch make of them, so that decisions are counted, of which a few may change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from platform import machine
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgepeft.data.metrics import compute, default_metric
from edgepeft.errors import BundleError, VerificationFailed
from edgepeft.host.machine import isa_flags
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.manifest import OnData, Verification

__all__ = [
    "EXACT",
    "LOGIT_TOLERANCE",
    "DataCheck",
    "Tolerance",
    "agreement_of",
    "allowed_for",
    "compare_logits",
    "pack_check",
    "read_check",
    "replay",
    "require_passed",
]

LOGIT_TOLERANCE = 1e-4  # largest absolute difference of a logit
GROUP_ROWS = 8  # attention of 64 rows of 512 tokens would need 800 MB

RunRows = Callable[[Inputs], NDArray[np.float32]]


@dataclass(frozen=True)
class Tolerance:
    """``difference`` of a logit (None: any), and the share of decided rows whose decision may change."""

    difference: float | None
    changed: float = 0.0


REFERENCES = {"pytorch": "PyTorch", "training graph": "its training graph"}
EXACT = Tolerance(LOGIT_TOLERANCE)
_ROUNDED = Tolerance(2e-2)  # half precision keeps 11 bits of a weight: each product is off by up to 5e-4 of itself
_QUANTISED = Tolerance(None, 0.02)
_MOVED = 0.25  # of the standard deviation of a regression's values


def allowed_for(backbone: str, delta: str) -> Tolerance:
    """What a bundle's ``weights_dtype`` and a task's allow."""
    if backbone == "int8":
        return _QUANTISED
    return _ROUNDED if delta == "fp16" else EXACT


def run_in_groups(run: RunRows, inputs: Inputs) -> NDArray[np.float32]:
    """Logits [rows, outputs] in the rows' own order, from groups of rows of like length, cut to their longest."""
    lengths = inputs["attention_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = []
    for start in range(0, len(order), GROUP_ROWS):
        rows = order[start : start + GROUP_ROWS]
        longest = int(lengths[rows].max())
        parts.append(run({name: np.ascontiguousarray(values[rows, :longest]) for name, values in inputs.items()}))
    logits = np.empty((len(order), parts[0].shape[1]), np.float32)
    logits[order] = np.concatenate(parts)
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
    except (SafetensorError, ValueError, TypeError, KeyError) as error:  # the last two: a type that NumPy lacks
        raise BundleError(f"{where} is not a check file ({error}).") from error
    logits = tensors.pop("logits", None)
    shapes = {value.shape for value in tensors.values()}
    sound = logits is not None and logits.ndim == 2 and "input_ids" in tensors and "attention_mask" in tensors
    if not sound or len(shapes) != 1 or len(logits) != len(tensors["input_ids"]) or not len(logits):
        raise BundleError(f"{where} is not a check file: it needs input_ids, attention_mask and logits of equal rows.")
    return tensors, logits


def replay(run: RunRows, inputs: Inputs, reference: NDArray[np.float32], allowed: Tolerance = EXACT) -> Verification:
    """Run the check's rows and compare with PyTorch's logits."""
    return compare_logits(reference, run_in_groups(run, inputs), allowed)


def compare_logits(
    reference: NDArray[np.float32], logits: NDArray[np.float32], allowed: Tolerance = EXACT
) -> Verification:
    """Largest logit difference, and equal decisions wherever the reference's margin exceeds twice the tolerance."""
    agreement, undecided = agreement_of(reference, logits, allowed)
    return Verification(
        rows=len(reference),
        max_abs_difference=float(np.abs(reference.astype(np.float64) - logits).max()),
        tolerance=allowed.difference,
        changed_tolerance=allowed.changed,
        agreement=agreement,
        undecided=undecided,
        isa=" ".join((machine(), *isa_flags())),
        onnxruntime=metadata.version("onnxruntime"),
    )


def agreement_of(
    reference: NDArray[np.float32], logits: NDArray[np.float32], allowed: Tolerance = EXACT
) -> tuple[float, int]:
    """(share of decided rows that have the reference's decision, number of undecided rows).

    A regression decides nothing.  Where its values are held to no tolerance, a row has changed that moved by more than
    a quarter of their standard deviation: noise that moves 2 % of rows so far costs a correlation half a point.

    Raises:
        VerificationFailed: the two are not of one shape.
    """
    if reference.shape != logits.shape:
        raise VerificationFailed(f"the check has logits {list(reference.shape)}, the model gives {list(logits.shape)}.")
    if reference.shape[1] > 1:
        best = np.sort(reference, axis=1)
        decided = best[:, -1] - best[:, -2] > 2 * (allowed.difference or LOGIT_TOLERANCE)
        equal = reference.argmax(axis=1) == logits.argmax(axis=1)
        return float(equal[decided].mean()) if decided.any() else 1.0, int((~decided).sum())
    if allowed.difference is not None:
        return 1.0, 0
    near = np.abs(reference - logits) <= max(_MOVED * float(reference.std()), LOGIT_TOLERANCE)
    return float(near.mean()), 0


def require_passed(task: str, result: Verification) -> None:
    """See that a comparison is within tolerance.

    Raises:
        VerificationFailed: it is not; the message gives the difference.
    """
    bound = math.inf if result.tolerance is None else result.tolerance
    # Not "difference > tolerance": a NaN must fail.
    close = result.max_abs_difference <= bound and math.isfinite(result.max_abs_difference)
    agreement = (result.data or result).agreement
    if close and 1 - agreement <= result.changed_tolerance + 1e-9:  # two of a hundred are not more than 2 %
        return
    where = f"its {result.rows} check rows" if result.data is None else f"{result.data.rows} rows of data"
    if result.tolerance is None:
        raise VerificationFailed(
            f"task {task}: with 8-bit weights {1 - agreement:.1%} of the decisions on {where} are not PyTorch's "
            f"(allowed: {result.changed_tolerance:.0%}; largest logit difference {result.max_abs_difference:.3g}). "
            "Verify on the task's own texts (--verify-data), or export with --weights fp32."
        )
    raise VerificationFailed(
        f"task {task}: ONNX Runtime differs from {REFERENCES[result.reference]} by {result.max_abs_difference:.3g} "
        f"on {where} (tolerance {bound:.0e}), with {agreement:.1%} of the decisions equal."
    )


@dataclass(frozen=True)
class DataCheck:
    """All rows of a data file, for weights whose logits are held to no tolerance: 64 rows cannot tell 2 % from 4 %.

    Token ids and masks [rows, length], PyTorch's logits [rows, outputs], and labels where they are the task's;
    ``labels`` are texts, or numbers for a regression; ``names`` the task's labels, None for a regression.
    """

    inputs: Inputs
    reference: NDArray[np.float32]
    labels: Sequence[str | float] | None
    names: Sequence[str] | None

    def compare(self, run: RunRows, allowed: Tolerance) -> OnData:
        """What ``run`` gives for these rows.

        Raises:
            VerificationFailed: another number of logits.
        """
        logits = run_in_groups(run, self.inputs)
        agreement, undecided = agreement_of(self.reference, logits, allowed)
        facts = {"rows": len(logits), "agreement": agreement, "undecided": undecided}
        if self.labels is None:
            return OnData.model_validate(facts)
        name = default_metric(self.names is None)
        scores = {"pytorch": self._score(name, self.reference), "onnxruntime": self._score(name, logits)}
        return OnData.model_validate({**facts, "metric": name, **scores})

    def _score(self, metric: str, logits: NDArray[np.float32]) -> float:
        assert self.labels is not None
        if self.names is None:
            return compute(metric, self.labels, logits[:, 0].tolist())
        return compute(metric, self.labels, [self.names[i] for i in logits.argmax(axis=1)], self.names)

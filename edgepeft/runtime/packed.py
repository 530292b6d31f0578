"""Between packed tokens, as graphs have them, and rows [batch, length, ...], as tasks that answer for each token do.

A graph packs the real tokens of a batch row by row, a prompt's before each row's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import BundleError

__all__ = ["packed", "put", "unpacked"]


def unpacked(values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """[tokens, ...] -> [batch, length, ...], 0 where ``mask`` [batch, length] has no token; a prompt's are left out.

    Raises:
        BundleError: there are other tokens than the batch has.
    """
    real = mask != 0
    counts = real.sum(1)
    prompt, odd = divmod(len(values) - counts.sum(), max(1, len(mask)))
    if prompt < 0 or odd:
        raise BundleError(f"the model gives logits of {len(values)} tokens for {counts.sum()} in {len(mask)} rows.")
    found = np.zeros((*mask.shape, *values.shape[1:]), values.dtype)
    if prompt:
        starts = np.cumsum(counts + prompt) - counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        values = values[np.repeat(starts, counts) + within]
    found[real] = values
    return found


def packed(values: NDArray[Any], mask: NDArray[Any], prompt: int, fill: float) -> NDArray[Any]:
    """[batch, length, ...] -> [tokens, ...], with ``fill`` at a prompt's tokens."""
    real = np.pad(mask != 0, ((0, 0), (prompt, 0)), constant_values=True)
    widths = [(0, 0), (prompt, 0)] + [(0, 0)] * (values.ndim - 2)
    found: NDArray[Any] = np.pad(values, widths, constant_values=fill)[real]
    return found


def put(into: NDArray[Any], rows: Any, part: NDArray[Any]) -> None:
    """Write logits of some rows, which may be of fewer tokens than ``into`` has.

    Raises:
        BundleError: they are of rows where those of tokens are due, or the other way round.
    """
    if part.ndim != into.ndim:
        due, found = (("of each token" if each.ndim > 2 else "of each row") for each in (into, part))
        raise BundleError(f"the task's kind needs logits {due}, and its graph gives them {found}.")
    if part.ndim == 2:
        into[rows] = part
    else:
        into[rows, : part.shape[1]] = part

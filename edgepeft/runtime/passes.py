"""A batch in passes, and packed tokens in rows.

A pass has rows of like length together, about a thousand real tokens.  The graph is packed, so a pass loses nothing to
its neighbours; what it gains is that activations stay in cache between operators, that short rows pay no attention
over a long row's padding, and that the arena's size follows the pass instead of the batch.

A graph packs the real tokens of a batch row by row, a prompt's before each row's own; tasks that answer for each token
have rows [batch, length, ...].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import BundleError

if TYPE_CHECKING:
    from edgepeft.runtime.inputs import Inputs

T = TypeVar("T")

# roberta-base, 32 rows of 128, 2 cores with 1 MB of L2 each: 3.93 s in one pass, 3.71 s by 2048, 3.62 s by 1024,
# 3.55 s by 512; smaller passes pay more for each operator's start where rows are short.
PASS_TOKENS = 1024


def passes(inputs: Inputs, tokens: int = PASS_TOKENS, prompt: int = 0) -> Iterator[tuple[NDArray[np.intp], Inputs]]:
    """Yield the rows of each pass and their inputs [rows, longest]; a single pass keeps the batch as it is.

    ``inputs`` holds attention_mask and its like, all [batch, length]; ``prompt`` counts the tokens that the
    graph puts in front of each row.  Columns are dropped at the end only: padding on the left may carry position.
    """
    mask = inputs["attention_mask"] != 0
    if not len(mask):
        return
    counts = mask.sum(1) + prompt
    n_passes = min(max(1, round(counts.sum() / tokens)), len(counts))
    if n_passes <= 1:
        yield np.arange(len(counts)), inputs
        return
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]  # real tokens in shorter rows
    cuts = np.searchsorted(before, counts.sum() * np.arange(1, n_passes) / n_passes)
    for rows in np.split(order, cuts):
        if rows.size:
            used = int(np.flatnonzero(mask[rows].any(0))[-1]) + 1
            yield rows, {name: values[rows, :used] for name, values in inputs.items()}


def one_row(inputs: Inputs) -> Inputs | None:
    """A batch of one row without the padding at its end; None for other batches, or padding elsewhere."""
    mask = inputs["attention_mask"]
    if len(mask) != 1:
        return None
    used = int(np.count_nonzero(mask))
    if used == mask.shape[1]:
        return inputs
    return {name: values[:, :used] for name, values in inputs.items()} if mask[0, :used].all() else None


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive groups of at most ``size``, in constant memory."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def unpacked(values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """[tokens, ...] -> [batch, length, ...], 0 where ``mask`` [batch, length] has no token; a prompt's are left out."""
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


def filled(shape: tuple[int, ...], found: NDArray[np.float32]) -> NDArray[np.float32]:
    """Fill ``found`` with 0 up to that shape, where it is of fewer tokens."""
    if found.shape == shape:
        return found
    into = np.zeros(shape, np.float32)
    put(into, slice(None), found)
    return into


def put(into: NDArray[Any], rows: Any, part: NDArray[Any]) -> None:
    """Write logits of some rows, which may be of fewer tokens than ``into`` has."""
    if part.ndim != into.ndim:
        due, found = (("of each token" if each.ndim > 2 else "of each row") for each in (into, part))
        raise BundleError(f"the task's kind needs logits {due}, and its graph gives them {found}.")
    if part.ndim == 2:
        into[rows] = part
    else:
        into[rows, : part.shape[1]] = part

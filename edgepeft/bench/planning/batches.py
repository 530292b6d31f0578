"""Batches: lengths of texts cut in the order of arrival, filled with random ids.

Ids are random because an encoder's speed does not depend on them; only lengths do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeft.errors import UsageError

__all__ = ["Batches", "batches_of", "random_batch"]

Batches = tuple[tuple[int, ...], ...]  # token counts: [batch][row]


def batches_of(lengths: Sequence[int], batch_size: int) -> Batches:
    """Cut lengths into batches in arrival order; a remainder smaller than a batch is left out.

    Every sample then answers the same number of texts.  Fewer texts than one batch are one batch.

    Raises:
        UsageError: ``batch_size`` is not positive.
    """
    if batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, got {batch_size}.")
    whole = len(lengths) // batch_size
    if not whole:
        return (tuple(lengths),)
    return tuple(tuple(lengths[i * batch_size : (i + 1) * batch_size]) for i in range(whole))


def random_batch(lengths: Sequence[int], *, vocab_size: int, pad_id: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Draw random ids, their mask and token types of zero, each [batch, longest]; rows end with ``pad_id``.

    Ids come from the upper part of the vocabulary, where no family keeps its special tokens.
    """
    width = max(lengths)
    mask = (np.arange(width) < np.asarray(lengths)[:, None]).astype(np.int64)
    low = min(1000, vocab_size // 2)  # BERT's [unused] and special entries lie below 1000
    drawn = np.random.default_rng(seed).integers(low, vocab_size - 1, mask.shape)
    drawn += drawn >= pad_id  # never the padding id: RoBERTa counts positions from it
    ids = np.where(mask == 1, drawn, pad_id)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

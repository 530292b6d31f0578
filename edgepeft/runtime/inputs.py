"""A batch of token ids: what a model reads, and what is wrong with a batch that it cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.tokens import Text
from edgepeft.errors import DataError

__all__ = ["Inputs", "check_rows", "checked_inputs", "pad_together", "texts_of"]

Inputs = Mapping[str, NDArray[np.int64]]  # input_ids, attention_mask and perhaps token_type_ids, each [batch, length]


def checked_inputs(inputs: Inputs, architecture: Architecture) -> dict[str, NDArray[np.int64]]:
    """Those of ``inputs`` that the backbone reads.

    Raises:
        DataError: one is missing, is not int64 or has another shape; an id has no embedding; a row has no token.
    """
    names = architecture.inputs
    if missing := [name for name in names if name not in inputs]:
        raise DataError(f"the batch has no {' and no '.join(missing)}; this backbone reads {', '.join(names)}.")
    batch = {name: np.asarray(inputs[name]) for name in names}
    shape = batch["input_ids"].shape
    for name, values in batch.items():
        if values.dtype != np.int64:
            raise DataError(f"{name} holds {values.dtype}; int64 is needed: .astype('int64').")
        if values.ndim != 2 or values.shape != shape:
            raise DataError(f"{name} has shape {list(values.shape)}; every input is [batch, length] alike.")
    real = batch["attention_mask"] != 0
    check_rows(real)
    ids = batch["input_ids"][real]
    if ids.size and not 0 <= ids.min() <= ids.max() < architecture.vocab_size:
        last = architecture.vocab_size - 1
        raise DataError(f"input_ids are {ids.min()} to {ids.max()}; this backbone has embeddings of 0 to {last}.")
    return batch


def texts_of(texts: object) -> list[Text]:
    """What callers give as texts; one text is a list of one, and the second of a pair may be None.

    Raises:
        DataError: something else; names the first.
    """
    given = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    read = []
    for row, one in enumerate(given):
        first, second = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, None)
        if not isinstance(first, str) or not isinstance(second, str | None):
            raise DataError(f"row {row}: a text, or a pair of texts (first, second), is needed; found {one!r:.60}.")
        read.append(Text(first, second))
    return read


def check_rows(mask: NDArray[np.generic]) -> None:
    """See that each row has a token: attention over nothing has no answer.

    Raises:
        DataError: names the first row that is masked throughout.
    """
    empty = np.flatnonzero(~(mask != 0).any(axis=1))
    if empty.size:
        raise DataError(f"row {empty[0]} of the batch is masked throughout; every row needs at least one token.")


def pad_together(batches: Sequence[Inputs], pad_token_id: int) -> dict[str, NDArray[np.int64]]:
    """The rows of several padded batches in one, [all rows, longest]."""
    longest = max(batch["input_ids"].shape[1] for batch in batches)

    def padded(name: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        fill = pad_token_id if name == "input_ids" else 0
        return np.pad(values, ((0, 0), (0, longest - values.shape[1])), constant_values=fill)

    return {name: np.concatenate([padded(name, batch[name]) for batch in batches]) for name in batches[0]}

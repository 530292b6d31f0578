"""Tensors that come from elsewhere: taken only where names, shapes and values are what the task's own are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError
from edgepeft.data.training_loop.engine import Arrays

__all__ = ["checked_tensors"]

_MOST_NAMES = 3  # in a message


def checked_tensors(given: Mapping[str, NDArray[Any]], like: Arrays, who: str) -> Arrays:
    """Copies in float32, in the order of ``like``; ``who`` is what an error calls what is given.

    Raises:
        DataError: a name is lacking or unknown, a shape is another, a value is not finite.
    """
    for what, odd in (("lack", like.keys() - given.keys()), ("have unknown", given.keys() - like.keys())):
        if odd:
            raise DataError(
                f"{who} {what} {_some(sorted(odd))}; the task's own are {_some(list(like))}. Take them of the same "
                "task, with the same tensors frozen."
            )
    found = {}
    for name, own in like.items():
        tensor = np.asarray(given[name])
        if tensor.shape != own.shape or tensor.dtype.kind != "f":
            raise DataError(
                f"{who} have {name} as {tensor.dtype} {list(tensor.shape)}, and the task has it as float32 "
                f"{list(own.shape)}; take them of the same task."
            )
        with np.errstate(over="ignore"):
            found[name] = tensor.astype(np.float32)  # a copy, whatever it was
        if not np.isfinite(found[name]).all():
            raise DataError(f"{who} have values in {name} that are not finite; they are not taken.")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

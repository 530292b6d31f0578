"""Rows that are read as several token rows, such as a text with each of its candidates: how these stand together.

Engines compute token rows, all of a row's in one batch and one after another; a kind of task sees them row by row.

Letters: n rows, R token rows of all of them, K of the row that has most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOWEST", "grouped", "members", "places_of"]

LOWEST = -1e30  # a logit where a row has no such token row: of probability 0, and no infinity that could become NaN


def places_of(counts: Sequence[int] | NDArray[Any], most: int | None = None) -> NDArray[np.int64]:
    """int64 [n, K] from the token rows of each row: the index of each among all, -1 past a row's last one; ``most`` is
    K where it is not the largest of these."""
    sizes = np.asarray(counts, np.int64)[:, None]
    columns = np.arange(int(sizes.max(initial=1)) if most is None else most)
    starts = np.cumsum(sizes, axis=0) - sizes
    places: NDArray[np.int64] = np.where(columns < sizes, starts + columns, -1)
    return places


def grouped(values: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """[R, ...] -> [n, K, ...], LOWEST where a row has no such token row."""
    found: NDArray[Any] = values[places.clip(min=0)]
    found[places < 0] = LOWEST
    return found


def members(counts: NDArray[Any], chosen: Sequence[int]) -> list[int]:
    """The token rows of the chosen rows, in their order."""
    ends = np.cumsum(counts)
    return [place for row in chosen for place in range(int(ends[row] - counts[row]), int(ends[row]))]

"""Tensors from other boards: seen to be a task's own, and averaged.

LoRA's factors are averaged by their product: the mean of B A of several boards, and not the mean B times the mean A.
Of boards i with weights w_i that sum to 1, what is meant is M = sum_i w_i B_i A_i, of a rank up to that of all boards
together.  What a delta of rank r can hold is its best approximation (Eckart & Young, 1936), by a singular value
decomposition M = U S V^T as in FlexLoRA (Bai et al., 2024, arXiv:2402.11505): A = c V_r^T, B = U_r S_r / c.  c
keeps A as large as the boards' own: with S^(1/2) on either side, what M has not would be zero in both, and never learn
again.

Letters: r rank, n boards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.training_loop.engine import Arrays

__all__ = ["average_products", "checked_tensors"]

_MOST_NAMES = 3  # in a message
_A, _B = "/A", "/B"


def checked_tensors(given: Mapping[str, NDArray[Any]], like: Arrays, who: str) -> Arrays:
    """Copies in float32, in the order of ``like``; ``who`` is what an error calls what is given."""
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


@dataclass(frozen=True)
class Products:
    """The factors by name; of all products together, as shares of the norm of what is meant: what rank r does ``lost``,
    and how far off the factors' own means would be, ``apart``."""

    tensors: Arrays
    lost: float
    apart: float


def average_products(boards: Sequence[Arrays], weights: Sequence[float]) -> Products:
    """The factors A [r, in] and B [out, r] of each pair that the boards' tensors have, from these boards.

    Args:
        boards: the tensors of each, all of the same names and shapes.
        weights: of each board, such as its number of rows.
    """
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    pairs = [(name, f"{name.removesuffix(_A)}{_B}") for name in boards[0] if _is_pair(boards[0], name)]
    if not pairs:
        raise UsageError(
            "these tensors have no factors A and B to multiply: average them as they are. Only LoRA has such, and none "
            "where A is frozen, whose mean is exact already."
        )
    found, lost, apart, norm = dict[str, NDArray[Any]](), 0.0, 0.0, 0.0
    for a, b in pairs:
        # M = [w_1 B_1, ..., w_n B_n] [A_1; ...; A_n] = left right, (out, n r) (n r, in): its rank is at most n r.
        left = np.concatenate([w * each[b].astype(np.float64) for w, each in zip(shares, boards, strict=True)], axis=1)
        right = np.concatenate([each[a].astype(np.float64) for each in boards])
        q, upper = np.linalg.qr(left)
        p, lower = np.linalg.qr(right.T)
        u, s, vt = np.linalg.svd(upper @ lower.T)
        rank = len(boards[0][a])
        size = np.sqrt(np.mean([np.square(each[a], dtype=np.float64).sum() for each in boards]) / rank) or 1.0
        found[b], found[a] = np.zeros_like(boards[0][b]), np.zeros_like(boards[0][a])
        found[b][:, : len(s)] = (q @ u[:, :rank]) * s[:rank] / size
        found[a][: len(s)] = size * (p @ vt[:rank].T).T
        means = [
            sum(w * each[name].astype(np.float64) for w, each in zip(shares, boards, strict=True)) for name in (b, a)
        ]
        norm, lost = norm + float(np.square(s).sum()), lost + float(np.square(s[rank:]).sum())
        apart += float(np.square(means[0] @ means[1] - left @ right).sum())
    scale = np.sqrt(norm) or 1.0
    return Products(found, float(np.sqrt(lost) / scale), float(np.sqrt(apart) / scale))


def _is_pair(tensors: Arrays, a: str) -> bool:
    """Whether this is an A [r, in] with a B [out, r] beside it."""
    other = tensors.get(f"{a.removesuffix(_A)}{_B}")
    return (
        a.endswith(_A)
        and other is not None
        and tensors[a].ndim == other.ndim == 2
        and len(tensors[a]) == other.shape[1]
    )

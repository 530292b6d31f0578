"""Rows that are likely mislabelled, by confident learning (Northcutt et al., 2021, arXiv:1911.00068, section 3.1).

The threshold of a label is its mean probability over the rows that have it: t_j = mean of p_j over {i : y_i = j}.  A
row is likely mislabelled where of the labels j with p_j >= t_j the most probable is another than its own, and the
answer is another too.  The worst first, by p(own label) - p(that label).  Probabilities are of a model that did not
learn from these rows.

Letters: n rows, C labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Doubt", "doubted"]


class Doubt(NamedTuple):
    """A row's place, its own label's probability, the label that it likely has, and that one's probability."""

    row: int
    own: float
    likely: int
    probability: float


def doubted(targets: NDArray[Any], shares: NDArray[Any]) -> Iterator[Doubt]:
    """Of the rows' labels [n] and probabilities [n, C]."""
    rows = np.bincount(targets, minlength=shares.shape[1])
    own = shares[np.arange(len(targets)), targets]
    means = np.bincount(targets, own, minlength=shares.shape[1]) / np.maximum(rows, 1)
    thresholds = np.where(rows > 0, means, np.inf)  # of a label that no row has nothing is known
    confident = np.where(shares >= thresholds, shares, -1.0)
    likely = confident.argmax(1)
    found = (confident.max(1) >= 0) & (likely != targets) & (shares.argmax(1) != targets)
    margins = own - shares[np.arange(len(targets)), likely]
    for i in sorted(np.flatnonzero(found).tolist(), key=lambda i: margins[i]):
        yield Doubt(i, float(own[i]), int(likely[i]), float(shares[i, likely[i]]))

"""Correlations of numbers; not scipy's, for what is tuned on a board is scored there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.tasks.base import Metric

__all__ = ["CORRELATIONS", "ranks"]

Numbers = NDArray[Any]


def _pearson(labels: Numbers, answers: Numbers) -> float:
    if len(np.unique(labels)) < 2 or len(np.unique(answers)) < 2:
        return 0.0  # not defined
    return float(np.corrcoef(labels.astype(np.float64), answers.astype(np.float64))[0, 1])


def _spearman(labels: Numbers, answers: Numbers) -> float:
    return _pearson(ranks(labels), ranks(answers))


def ranks(values: Numbers) -> Numbers:
    """Equal values share the mean of their ranks."""
    _, which, counts = np.unique(values.astype(np.float64), return_inverse=True, return_counts=True)
    means: Numbers = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return means


CORRELATIONS = {
    "pearson": Metric(lambda _, labels, answers: _pearson(labels, answers)),
    "spearman": Metric(lambda _, labels, answers: _spearman(labels, answers)),
    "pearson_spearman": Metric(lambda _, a, b: (_pearson(a, b) + _spearman(a, b)) / 2),
}
"""By name; of numbers [n] and answers [n]."""

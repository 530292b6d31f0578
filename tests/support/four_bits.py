"""What 4 bits make of a matrix, by NumPy, a group of 32 at a time."""

from __future__ import annotations

import numpy as np


def four_bits(weights: np.ndarray) -> np.ndarray:
    """The values [out, in] that the numbers -8 to 7 of each group stand for.

    Of five trials, whose step is the value of largest magnitude over -7 to -9, each rounds to the nearest number and
    takes the step of least squares for these numbers; the one with the least squared error stays.
    """
    given = np.zeros_like(weights)
    for row, out in zip(weights, given, strict=True):
        for begin in range(0, len(row), 32):
            group = row[begin : begin + 32]
            trials = [_trial(group, np.float32(-steps)) for steps in (7, 7.5, 8, 8.5, 9)]
            out[begin : begin + 32] = min(trials, key=lambda values: np.sum((values - group) ** 2))
    return given


def _trial(group: np.ndarray, steps: np.float32) -> np.ndarray:
    step = max(group, key=abs) / steps
    numbers = np.clip(np.rint(group / step), -8, 7) if step else np.zeros_like(group)
    return numbers * (np.sum(group * numbers) / np.sum(numbers**2)) if numbers.any() else numbers

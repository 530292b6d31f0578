"""What both engines' fine-tuning has in common: the rate and the labels, so that their steps are one step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.planning.job import Job

__all__ = ["LEARNING_RATE", "labels_of"]

LEARNING_RATE = 1e-6  # the figure is time; weights should stay where activations are ordinary


def labels_of(job: Job, rows: int) -> NDArray[Any]:
    """[rows]: classes in turn, or numbers where the task has one output."""
    numbers = np.arange(rows)
    return numbers.astype(np.float32) if job.n_labels == 1 else numbers % job.n_labels

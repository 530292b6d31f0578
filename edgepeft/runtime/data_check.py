"""A task on all rows of a data file: decisions and metric of what was exported against PyTorch's.

For 8-bit weights, whose logits are held to no tolerance: 64 rows cannot tell 2 % of changed decisions from 4 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.metrics import compute, default_metric
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.manifest import OnData
from edgepeft.runtime.verify import RunRows, Tolerance, agreement_of, run_in_groups

__all__ = ["DataCheck"]


@dataclass(frozen=True)
class DataCheck:
    """Token ids and masks [rows, length], PyTorch's logits [rows, outputs], and labels where they are the task's.

    ``labels`` are texts, or numbers for a regression; ``names`` the task's labels, None for a regression.
    """

    inputs: Inputs
    reference: NDArray[np.float32]
    labels: Sequence[str | float] | None
    names: Sequence[str] | None

    def compare(self, run: RunRows, allowed: Tolerance) -> OnData:
        """What ``run`` gives for these rows.

        Raises:
            VerificationFailed: another number of logits.
        """
        logits = run_in_groups(run, self.inputs)
        agreement, undecided = agreement_of(self.reference, logits, allowed)
        facts = {"rows": len(logits), "agreement": agreement, "undecided": undecided}
        if self.labels is None:
            return OnData.model_validate(facts)
        name = default_metric(self.names is None)
        scores = {"pytorch": self._score(name, self.reference), "onnxruntime": self._score(name, logits)}
        return OnData.model_validate({**facts, "metric": name, **scores})

    def _score(self, metric: str, logits: NDArray[np.float32]) -> float:
        assert self.labels is not None
        if self.names is None:
            return compute(metric, self.labels, logits[:, 0].tolist())
        return compute(metric, self.labels, [self.names[i] for i in logits.argmax(axis=1)], self.names)

"""The numbers that every training loop has, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math

from edgepeft.common.errors import UsageError

__all__ = ["BATCH", "EPOCHS", "MEAN_HEAD_RATE", "TrainingLoopOptions"]

EPOCHS = 3  # BERT's fine-tuning (Devlin et al., 2019, appendix A.3) and SPARTAN's large tasks
# Where neither is given. 64 rows, MiniLM, lora, test accuracy after 3 passes (12 steps) and 100 steps: SMS 88.0 (the
# majority has 87.7) and 96.0 %, SST-2 67.7 and 72.5 %; pfeiffer: 88.2 and 94.5, 67.0 and 70.5, airline 69.3 and 71.0 %.
LEAST_STEPS = 100
BATCH = 16  # the same
MEAN_HEAD_RATE = 2e-2  # of a fresh head on a mean of hidden states; see `TrainSettings.resolved`
_LEAST = {"epochs": 1, "steps": 1, "patience": 1, "batch_size": 1, "save_every": 1, "seed": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLoopOptions:
    """Numbers of one run; None means a default that depends on method, task or data.

    ``epochs`` and ``steps`` exclude each other; ``warmup`` is the part of the steps in which the rate rises.
    ``patience`` is after how many evaluations without a better score the run ends; None never ends it early.
    """

    epochs: int | None = None
    steps: int | None = None
    patience: int | None = None
    learning_rate: float | None = None
    head_learning_rate: float | None = None
    batch_size: int | None = None
    metric: str | None = None
    seed: int = 0
    warmup: float = 0.1
    clip_norm: float = 1.0
    save_every: int = 100

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UsageError("--epochs and --steps exclude each other; give one of them.")
        self.require_at_least(_LEAST)
        for option, rate in (("lr", self.learning_rate), ("head-lr", self.head_learning_rate)):
            if rate is not None and not (math.isfinite(rate) and rate > 0):
                raise UsageError(f"--{option} must be a positive number; found {rate}.")

    def require_at_least(self, least: dict[str, int]) -> None:
        """See that no option is below its least value."""
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and value < number:
                raise UsageError(f"--{name.replace('_', '-')} must be at least {number}; found {value}.")

    def total_steps(self, per_epoch: int) -> int:
        """Updates of the whole run."""
        if self.epochs is None and self.steps is None:
            return max(per_epoch * EPOCHS, LEAST_STEPS)
        return self.steps or per_epoch * (self.epochs or 0)

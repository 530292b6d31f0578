"""What a run on the board is asked to do, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from edgepeft.errors import UsageError

__all__ = ["TuneOptions"]

EPOCHS = 3  # as `edgepeft train`


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Numbers of one run, as `edgepeft train` has them; None means what the training graph or the metric says.

    ``patience`` is after how many evaluations without a better score the run ends; None never ends it early.
    ``weight_decay`` and ``dropout`` hold for what has them.  ``prefix_cache`` and ``micro_batch`` (None: what fits
    ``memory`` and the ``profile``'s) change how a step is computed, and its result in the last digits only.
    """

    epochs: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    head_learning_rate: float | None = None
    weight_decay: float = 0.0
    batch_size: int | None = None
    metric: str | None = None
    seed: int = 0
    few_shot: int | None = None
    dropout: bool = True
    patience: int | None = None
    warmup: float = 0.1
    clip_norm: float = 1.0
    save_every: int = 20
    prefix_cache: bool = True
    micro_batch: int | None = None
    profile: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UsageError("--epochs and --steps exclude each other; give one of them.")
        for name in ("epochs", "steps", "batch_size", "save_every", "patience", "micro_batch"):
            _require_at_least(1, name, getattr(self, name))
        _require_at_least(0, "seed", self.seed)
        for option, rate in (("lr", self.learning_rate), ("head-lr", self.head_learning_rate)):
            if rate is not None and not (math.isfinite(rate) and rate > 0):
                raise UsageError(f"--{option} must be a positive number; found {rate}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay must be a number of at least 0; found {self.weight_decay}.")

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("profile", "memory")}


def _require_at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise UsageError(f"--{name.replace('_', '-')} must be at least {least}; found {value}.")

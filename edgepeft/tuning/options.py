"""What a run on the board is asked to do, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

from edgepeft.common.errors import UsageError
from edgepeft.data.training_loop.options import TrainingLoopOptions
from edgepeft.graph.gradient.rule import Backward
from edgepeft.tasks._certainty import Promise, promise_of

__all__ = ["TuneOptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions(TrainingLoopOptions):
    """A training loop's numbers; None means what the task or the metric says.

    ``weight_decay`` and ``dropout`` hold for what has them; ``balanced`` weighs rows in the loss so that all labels
    weigh alike.  ``backward`` is how gradients pass a backbone of 8-bit weights, in int8 or fp32.  ``prefix_cache`` and
    ``micro_batch`` (None: what fits ``memory`` and the ``profile``'s) change how a step is computed, and its result in
    the last digits only.  ``coverage`` or ``risk`` is what is promised of a classification's answers; None keeps what
    the task has.
    """

    weight_decay: float = 0.0
    few_shot: int | None = None
    balanced: bool = False
    dropout: bool = True
    save_every: int = 20
    prefix_cache: bool = True
    micro_batch: int | None = None
    backward: Backward = "int8"
    profile: str | None = None
    memory: str | None = None
    coverage: float | None = None
    risk: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        promise_of(self.coverage, self.risk)
        self.require_at_least({"micro_batch": 1})
        if self.backward not in get_args(Backward):
            raise UsageError(f"--backward {self.backward!r}: it is {' or '.join(get_args(Backward))}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay must be a number of at least 0; found {self.weight_decay}.")

    @property
    def promise(self) -> Promise:
        """What is asked for; nothing where it is not."""
        return promise_of(self.coverage, self.risk)

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        left_out = {"profile", "memory", *({"coverage", "risk"} - {*self.promise})}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}

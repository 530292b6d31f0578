"""What a kind of task says of how sure its answers are; a kind that does not know inherits that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from edgepeft.common.errors import UsageError

__all__ = ["Certainty", "Promise", "promise_of"]

Promise = Mapping[str, float]
"""Nothing, or ``coverage``, or ``risk``."""


def promise_of(coverage: float | None, risk: float | None) -> Promise:
    """What is asked for by ``--coverage`` or ``--risk``.

    Raises:
        UsageError: both are, or one is no share between 0 and 1.
    """
    given = {name: value for name, value in (("coverage", coverage), ("risk", risk)) if value is not None}
    if len(given) > 1:
        raise UsageError("--coverage and --risk exclude each other: an answer is unsure by one threshold.")
    for name, value in given.items():
        if not (math.isfinite(value) and 0 < value < 1):
            usual = {"coverage": 0.95, "risk": 0.05}[name]
            raise UsageError(f"--{name} is a share between 0 and 1, such as {usual}; found {value:g}.")
    return given


class Certainty:
    """Base of kinds: probabilities are as they are, and every answer is sure."""

    title: ClassVar[str]
    calibrates: ClassVar[bool] = False  # the evaluation rows' logits say how far probabilities can be believed

    @property
    def promise(self) -> Promise:
        """What is promised of the answers that are not ``unsure``."""
        return {}

    def promising(self, promise: Promise, n: int) -> Self:
        """This kind with that to be kept, by ``n`` evaluation rows; nothing, where nothing is promised.

        Raises:
            UsageError: such answers have no probabilities, or the rows are too few.
        """
        if promise:
            raise UsageError(
                f"--{next(iter(promise))} is for a classification or a choice, whose answers have probabilities; this "
                f"task is {self.title}. Leave it out."
            )
        return self

    def right_of(self, targets: NDArray[Any], logits: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """int64 [n], which answer of each row is right, and the logits [n, C] of all."""
        return targets, logits

    def calibrated(self, targets: NDArray[Any], logits: NDArray[Any]) -> Self:
        """With what these rows, the evaluation rows, say of its probabilities [n, C]."""
        return self

    def calibration(self, targets: NDArray[Any], logits: NDArray[Any]) -> dict[str, Any]:
        """``calibration`` of these rows: how often what is probable is right; nothing where that is not known."""
        return {}

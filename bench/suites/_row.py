"""One line of a suite's result: a figure with its interval, what it should be, and the samples behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from pydantic import computed_field
from pydantic.dataclasses import dataclass


class SuiteVerdict(StrEnum):
    """``unsure``: the figure lies on the right side of its target, one end of its interval does not."""

    MET = "met"
    UNSURE = "unsure"
    MISSED = "missed"
    NONE = "-"


@dataclass(frozen=True)
class Target:
    """What a figure should be: at least ``value``, or at most."""

    value: float
    at_least: bool = True

    def judge(self, value: float, low: float, high: float) -> SuiteVerdict:
        """Where a figure and the ends of its interval lie."""
        worst = low if self.at_least else high
        if self._holds(worst):
            return SuiteVerdict.MET
        return SuiteVerdict.UNSURE if self._holds(value) else SuiteVerdict.MISSED

    def _holds(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True)
class SuiteRow:
    """``value`` is None where it could not be measured; ``note`` then has the reason.

    ``unit``: "x" (a ratio of throughputs), "bytes ratio", "s", "ms", "MB" or "share".  ``samples``: what each side
    took, by its name, in the order of the rounds.
    """

    what: str
    peer: str | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    unit: str = "x"
    target: Target | None = None
    samples: Mapping[str, Sequence[int | float]] = field(default_factory=dict)
    note: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> SuiteVerdict:
        """Whether the target is met."""
        if self.target is None or self.value is None:
            return SuiteVerdict.NONE
        return self.target.judge(self.value, *(self.interval or (self.value, self.value)))

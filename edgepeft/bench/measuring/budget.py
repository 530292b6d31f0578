"""What ``--max-seconds`` leaves of a run: the moment at which it is to be over, and what still fits before it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = ["NO_BOUND", "Budget"]


@dataclass(frozen=True)
class Budget:
    """Time until a moment of the clock; without one there is no end."""

    until: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Budget:
        """So many seconds from now; None is no bound."""
        return cls(math.inf if seconds is None else clock() + seconds, clock)

    @property
    def left_s(self) -> float:
        """Seconds, 0 where it is over."""
        return max(0.0, self.until - self.clock())

    def part(self, of: int) -> Budget:
        """The first of so many equal parts of what is left."""
        return replace(self, until=self.clock() + self.left_s / of)

    def fits(self, seconds: float) -> bool:
        """Whether what takes so long ends in time; nothing does once it is over."""
        return seconds < self.left_s


NO_BOUND = Budget()

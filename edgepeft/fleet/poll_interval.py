"""When a board pulls: at random moments, so that a fleet that was switched on at once does not come at once."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator

from edgepeft.common.errors import UsageError

__all__ = ["moments", "seconds_of"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LEAST_S = 10


def seconds_of(text: str) -> int:
    """``30m``, ``1h`` or ``1d`` in seconds.

    Raises:
        UsageError: it is no such time, or under ten seconds.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if seconds < _LEAST_S:
        raise UsageError(f"--every is a time such as 30m, 1h or 1d, of at least {_LEAST_S} s; found {text!r}.")
    return seconds


def moments(
    period_s: float,
    note: Callable[[float], object] = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> Iterator[None]:
    """One moment in each period, uniform in it, for ever: at any time a fleet's requests come as a steady stream.

    ``note`` gets the seconds until the next; ``draw`` gives numbers from 0 to 1.
    """
    before = 0.0
    while True:
        at = draw() * period_s  # from the period's beginning
        wait = at + before
        note(wait)
        sleep(wait)
        yield
        before = period_s - at

"""Whether a gradient is the loss's: a path that is lost on the way back is silent, so the loss is moved along it.

At a distance t along the normalised gradient g, (f(t) - f(-t)) / 2t is |g| but for terms of t^2 and for rounding.  A
logit may be off by 1e-4 (to that a task is verified when it is exported), so a cross entropy by 2e-4, and a squared
error by 2e-4 times its root and by its own last digits: where f is to change by 0.01 (times that), the slope is off by
4 % at most.  Measured, it is off by 0.04 %.

Curvature, a kink or a jump nearby makes slopes differ at four times the distance or on the two sides: only where all of
them agree with each other, and not with the gradient, is it wrong.  What is lost at right angles to the rest of the
gradient is not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["wrong_slope"]

_CHANGE, _DIGITS = 0.01, 1e-4  # of the loss, to be seen over rounding: in itself, and as a share of it
_FURTHER = 4
_OFF, _ALIKE = 0.05, 0.035  # a jump on both sides that makes 5 % here makes 1.25 % further on


def wrong_slope(loss: Callable[[float], float], start: float, norm: float, least: float) -> float | None:
    """The slope that the loss has, where the gradient's norm is surely another.

    Takes two losses, and two more where these do not agree with the norm.

    Args:
        loss: at a distance along the normalised gradient.
        start: the loss at 0.
        norm: of the gradient.
        least: a distance that the tensors' rounding is small beside; a loss that is steeper than that is not judged.
    """
    if not (math.isfinite(start) and math.isfinite(norm) and norm > 0):
        return None
    distance = max(_CHANGE * max(1.0, math.sqrt(start)), _DIGITS * start) / (2 * norm)
    if distance < least:
        return None
    before, after = loss(-distance), loss(distance)
    slope = (after - before) / (2 * distance)
    if _near(slope, norm, _OFF):
        return None
    further = _FURTHER * distance
    others = [(after - start) / distance, (start - before) / distance]
    others.append((loss(further) - loss(-further)) / (2 * further))
    return slope if all(_near(other, slope, _ALIKE) for other in others) else None


def _near(one: float, other: float, share: float) -> bool:
    """Not where either is no number."""
    return abs(one - other) <= share * abs(other)

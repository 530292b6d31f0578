"""When a training loop has diverged: its losses stay far above where they began, and above what knowing nothing costs.

The median of the last steps decides, so that no single batch of outliers does.
"""

from __future__ import annotations

import math
from statistics import median

from edgepeft.common.errors import EdgepeftError
from edgepeft.data.training_loop.checkpoint import Position

__all__ = ["Diverged", "most_loss", "record_loss", "risen"]

FIRST = 5  # steps whose median loss is where a run began: the rate is still warming up
RECENT = 20  # steps whose median is where it stands
FAR = 3.0  # times: of two labels, 2.1 and more


class Diverged(EdgepeftError):
    """The loss or a gradient is not finite, or the losses are far above their start."""


def record_loss(position: Position, loss: float) -> None:
    """Keep what ``risen`` needs; it is in the checkpoint, so a resumed run ends where an uninterrupted one does."""
    if len(position.first_losses) < FIRST:
        position.first_losses.append(loss)
    position.recent_losses = [*position.recent_losses, loss][-RECENT:]


def most_loss(position: Position, ignorant: float) -> float:
    """What is far above the start."""
    return FAR * max(ignorant, median(position.first_losses or [math.inf]))


def risen(position: Position, ignorant: float) -> str | None:
    """Says how far the losses are above their start, where they are."""
    now = median(position.recent_losses or [0.0])
    if len(position.recent_losses) < RECENT or now <= most_loss(position, ignorant):
        return None
    return f"the loss rose from {median(position.first_losses):.3g} to {now:.3g} (median of {RECENT} steps)"

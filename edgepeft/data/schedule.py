"""Linear warm-up, then linear decay to zero (Devlin et al., 2019, appendix A.2; transformers has the same)."""

from __future__ import annotations

import math

__all__ = ["evaluation_interval", "rate_factor", "warmup_steps"]

MOST_EVALUATIONS = 20  # a few-shot run has hundreds of short epochs


def warmup_steps(total: int, part: float) -> int:
    """Steps in which the rate rises; none if the run is too short for one."""
    return int(part * total)


def rate_factor(step: int, warmup: int, total: int) -> float:
    """What the learning rate is multiplied by in step 0, 1, ..., total - 1."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def evaluation_interval(steps_per_epoch: int, total: int) -> int:
    """Steps between evaluations: an epoch, or longer where there would be too many."""
    return max(steps_per_epoch, math.ceil(total / MOST_EVALUATIONS))

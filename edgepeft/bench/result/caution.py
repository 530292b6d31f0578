"""The closed set of kinds of warnings, each with what to do about it."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Caution", "said"]


class Caution(StrEnum):
    """A kind; its text opens the warning, and a colon follows."""

    UNAVAILABLE = "not available"
    TOO_LARGE = "does not fit"
    CUT_SHORT = "cut short"
    FEW_SAMPLES = "too few samples"
    NO_PERCENTILE = "no percentile"
    NOISY = "noisy"
    OUTLIERS = "outliers"
    DRIFT = "drift"
    CLOCK = "unsteady clock"
    LOAD = "other load"
    THROTTLED = "throttled"
    OVERSUBSCRIBED = "spinning oversubscribed"
    SWAP = "swap"
    INTERRUPTED = "interrupted"


HINTS = {
    Caution.UNAVAILABLE: "",  # says itself what to install
    Caution.TOO_LARGE: "",  # says itself what to make smaller
    Caution.CUT_SHORT: "raise --max-seconds",
    Caution.FEW_SAMPLES: "raise --rounds",
    Caution.NO_PERCENTILE: "raise --rounds; a percentile needs a sample above it",
    Caution.NOISY: "close what else runs, or judge by ratios within rounds (--against)",
    Caution.OUTLIERS: "they are kept in samples_s; the median does not feel them",
    Caution.DRIFT: "let the machine reach its temperature first, then measure again",
    Caution.CLOCK: "set the performance governor or turn turbo off; ratios within rounds hold all the same",
    Caution.LOAD: "close what else runs; on a shared machine compare with --against only",
    Caution.THROTTLED: "cool the processor or raise the quota; throughput is lower than it could be",
    Caution.OVERSUBSCRIBED: "threads wait for each other in a loop: give as many as there are cores",
    Caution.SWAP: "free some memory, or take a smaller --batch-size",
    Caution.INTERRUPTED: "run the same command with --resume, or anew where it has --against",
}


def said(kind: Caution, what: str) -> str:
    """``kind: what (hint)``."""
    hint = f" ({HINTS[kind]})" if HINTS[kind] else ""
    return f"{kind}: {what}{hint}"

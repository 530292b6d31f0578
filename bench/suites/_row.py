"""One line of a suite's result: a figure with its interval, what it should be, and the samples behind it.

Most are ratios of two sides that raced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

import numpy as np
from pydantic import computed_field
from pydantic.dataclasses import dataclass

from edgepeft.bench.result.statistics import Ratio, interval_of, paired_ratio, percentile, ratio_of_totals
from edgepeft.common.errors import EdgepeftError
from edgepeft.tasks._facts import CLOSE

Races = list[tuple[Sequence[float], Sequence[float]]]  # seconds of each round, (own, peer)

_RESAMPLES = 4000
_SEED = 20_240_229
_ROUNDING = 2e-5  # of the largest value: what float32 loses in some thirty layers
_NO_TIME = "no time was left"
_MB = 1e6


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

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.value:.3g}"

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


def ratio_row(
    what: str,
    raced: Mapping[str, Sequence[float]],
    own: str,
    peer: str,
    target: Target | None = None,
    *,
    of_totals: bool = False,
    note: str = "",
) -> SuiteRow:
    """Throughput of ``own`` over that of ``peer``: the median of paired rounds, or of all rounds' sums."""
    if not raced[own]:
        return SuiteRow(what, peer, target=target, note=_NO_TIME)
    compare = ratio_of_totals if of_totals else paired_ratio
    ratio = compare(raced[own], raced[peer])
    samples = {label: raced[label] for label in (own, peer)}
    return SuiteRow(what, peer, ratio.value, (ratio.low, ratio.high), "x", target, samples, note)


def mean_row(what: str, peer: str, races: Races, target: Target | None = None) -> SuiteRow:
    """The geometric mean of several races, as a row."""
    if not all(own for own, _ in races):
        return SuiteRow(what, peer, target=target, note=_NO_TIME)
    mean = geometric_mean(races)
    return SuiteRow(what, peer, mean.value, (mean.low, mean.high), target=target)


def geometric_mean(pairs: Races) -> Ratio:
    """Of the ratios of sums of several races (own, peer), rounds resampled in pairs within each."""
    if not pairs:
        raise ValueError("no race to take a mean of")
    value = np.exp(np.mean([np.log(ratio_of_totals(own, peer).value) for own, peer in pairs]))
    rng, logs = np.random.default_rng(_SEED), []
    for own, peer in pairs:
        a, b = np.asarray(own), np.asarray(peer)
        chosen = rng.integers(0, len(a), (_RESAMPLES, len(a)))
        logs.append(np.log(b[chosen].sum(axis=1) / a[chosen].sum(axis=1)))
    return Ratio(float(value), *interval_of(np.exp(np.mean(logs, axis=0))), min(len(own) for own, _ in pairs))


def bytes_row(
    what: str, sides: Mapping[str, float], target: Target | None = None, *, peer: str | None = None, unit: str = "x"
) -> SuiteRow:
    """Bytes of the first of two sides over those of the second; samples in MB."""
    first, second = sides.values()
    samples = {side: [n_bytes / _MB] for side, n_bytes in sides.items()}
    return SuiteRow(what, peer, first / second, unit=unit, target=target, samples=samples)


def seconds_row(what: str, seconds: Sequence[float], target: Target | None = None) -> SuiteRow:
    """The median, with the extremes as the interval's ends: few samples, and the promise is for each of them."""
    ends = min(seconds), max(seconds)
    return SuiteRow(what, None, float(np.median(seconds)), ends, "s", target, {"seconds": seconds})


def switch_row(what: str, switches: Sequence[float], stays: Sequence[float], most_ms: float) -> SuiteRow:
    """Milliseconds between the 99th percentiles of two kinds of request, with a bootstrap interval."""
    a, b = np.asarray(switches) * 1e3, np.asarray(stays) * 1e3
    value = (percentile(a.tolist(), 99) or 0.0) - (percentile(b.tolist(), 99) or 0.0)
    rng = np.random.default_rng(0)
    drawn = [np.percentile(rng.choice(x, (_RESAMPLES // 2, len(x))), 99, axis=1) for x in (a, b)]
    samples, target = {"switch": switches, "stay": stays}, Target(most_ms, at_least=False)
    note = f"medians: {np.median(a):.2f} and {np.median(b):.2f} ms"
    return SuiteRow(what, None, value, interval_of(drawn[0] - drawn[1]), "ms", target, samples, note)


def require_close(what: str, peer: str, apart: float, largest: float = 0.0) -> None:
    """See that the values of ``what``, at most ``largest``, and of its export by ``peer`` differ by rounding alone."""
    if not apart <= (allowed := max(CLOSE, _ROUNDING * largest)):
        raise EdgepeftError(
            f"{what} and its export by {peer} are {apart:.1e} apart, and {allowed:.0e} is what "
            "rounding makes: they are not the same model, and their times say nothing."
        )

"""A suite's result, which grows with every row, so that an interrupted run keeps what it has.

A row is a figure with its interval, what it should be, and the samples behind it; most are ratios of two sides that
raced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass as part

from bench.suites import suite_named
from bench.suites._random_bundle import config_in
from bench.suites._suite_run import SuiteRun
from edgepeft.bench.measuring.emulation import setting_of
from edgepeft.bench.measuring.measure import ProgressCallback
from edgepeft.bench.result.conditions import profile_of
from edgepeft.bench.result.parts import DocumentPart, HostRecord, Positive, ProfileRecord
from edgepeft.bench.result.statistics import Ratio, interval_of, paired_ratio, percentile, ratio_of_totals
from edgepeft.bench.workloads.probes import GEMM_FLOPS
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError
from edgepeft.device.machine import host_facts
from edgepeft.device.profiles import load_profile
from edgepeft.tasks._losses import CLOSE

_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone; a suite that needs another has an ARCHITECTURE
_ROUNDS, _MAX_SECONDS = 30, 600.0
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


@part(frozen=True)
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


@part(frozen=True)
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


@dataclass(frozen=True)
class SuiteRequest:
    """What was asked; ``max_seconds`` is the time after which a comparison begins no new round.

    ``cases``, ``pythons``: as of ``SuiteRun``; ``work``: a folder that keeps bundles and peers for the next run.
    """

    suite: str
    profile: str
    backbone: str | None = None
    rounds: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    cases: Sequence[str] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    work: Path | None = None


class SuiteHost(HostRecord):
    """The host, with the GEMM rate in every round of all comparisons, GFLOP/s."""

    gemm_samples_gflops: tuple[Positive, ...] = ()


class SuiteModel(DocumentPart):
    """The architecture that was measured: with random weights, or those of a folder."""

    name: str
    random_weights: bool = True


class SuiteResult(DocumentPart):
    """The whole document, schema ``edgepeft.suite/1``; ``rounds``: the most of a comparison; ``peers``: the versions
    of each peer's packages."""

    schema_name: Literal["edgepeft.suite/1"] = Field(default="edgepeft.suite/1", alias="schema")
    suite: str
    mode: str | None = None
    title: str
    host: SuiteHost
    profile: ProfileRecord
    model: SuiteModel
    threads: int
    rounds: int
    seed: int
    date: str | None = None
    peers: dict[str, str] = Field(default={})
    rows: tuple[SuiteRow, ...]


def run_suite(
    request: SuiteRequest,
    *,
    progress: ProgressCallback = lambda what, done, total: None,
    keep: Callable[[SuiteResult], object] = lambda result: None,
    suite: Any = None,
) -> SuiteResult:
    """Measure a suite; ``keep`` gets the result after every row.  ``suite``: tests bring their own."""
    for option, number in (("--rounds", request.rounds), ("--max-seconds", request.max_seconds)):
        if number is not None and not number > 0:
            raise UsageError(f"{option} must be above 0, got {number}.")
    chosen = suite or suite_named(request.suite)
    for case in request.cases:
        if case not in (known := getattr(chosen, "CASES", ())):
            raise UnknownName(f"case of the suite {request.suite}", case, known)
    architecture = request.backbone or str(getattr(chosen, "ARCHITECTURE", _DEFAULT_ARCHITECTURE))
    named = Path(architecture).name
    config_in(architecture)  # that there is one, before anything is made
    profile = load_profile(request.profile)
    setting = setting_of("limits", profile)
    with tempfile.TemporaryDirectory(prefix="edgepeft-suite-") as made:
        work = Path(made) if request.work is None else request.work / f"{named}-{request.seed}"  # of the same weights
        work.mkdir(parents=True, exist_ok=True)
        how = setting.limits, setting.threads, request.rounds or _ROUNDS, request.max_seconds or _MAX_SECONDS
        run = SuiteRun(work, architecture, *how, request.seed, request.cases, request.pythons, progress)
        rows, today = list[SuiteRow](), datetime.now(UTC).date().isoformat()

        def result() -> SuiteResult:
            rates = tuple(GEMM_FLOPS / seconds / 1e9 for seconds in run.gemm)
            rate = float(np.median(rates)) if rates else None
            return SuiteResult(
                suite=request.suite,
                mode=setting.mode,
                title=chosen.TITLE,
                host=SuiteHost(**host_facts(), gemm_gflops=rate, gemm_samples_gflops=rates),
                profile=profile_of(profile, setting.limits, run.in_force, setting.notes),
                model=SuiteModel(name=named, random_weights=not Path(architecture).is_dir()),
                threads=run.threads,
                rounds=run.rounds,
                seed=run.seed,
                date=today,
                peers=dict(run.versions),
                rows=tuple(rows),
            )

        for row in chosen.measure(run):
            rows.append(row)
            keep(result())
        return result()

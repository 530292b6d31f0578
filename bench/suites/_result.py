"""Runs a whole suite: its result grows with every row, so that an interrupted run keeps what it has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from bench.suites import suite_named
from bench.suites._random_bundle import config_in
from bench.suites._row import SuiteRow
from bench.suites._suite_run import SuiteRun
from edgepeft.bench.measuring.emulation import setting_of
from edgepeft.bench.measuring.measure import ProgressCallback
from edgepeft.bench.result.conditions import profile_of
from edgepeft.bench.result.parts import HostRecord, Part, Positive, ProfileRecord
from edgepeft.bench.workloads.probes import GEMM_FLOPS
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.device.machine import host_facts
from edgepeft.device.profiles import load_profile

_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone; a suite that needs another has an ARCHITECTURE
_ROUNDS, _MAX_SECONDS = 30, 600.0


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


class SuiteModel(Part):
    """The architecture that was measured: with random weights, or those of a folder."""

    name: str
    random_weights: bool = True


class SuiteResult(Part):
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
    with _work_folder(request, architecture) as work:
        run = SuiteRun(
            work,
            architecture,
            setting.limits,
            setting.threads,
            request.rounds or _ROUNDS,
            request.max_seconds or _MAX_SECONDS,
            request.seed,
            request.cases,
            request.pythons,
            progress,
        )
        rows: list[SuiteRow] = []
        today = datetime.now(UTC).date().isoformat()

        def result() -> SuiteResult:
            return SuiteResult(
                suite=request.suite,
                mode=setting.mode,
                title=chosen.TITLE,
                host=_host(run),
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


@contextmanager
def _work_folder(request: SuiteRequest, architecture: str) -> Iterator[Path]:
    if request.work is None:
        with tempfile.TemporaryDirectory(prefix="edgepeft-suite-") as work:
            yield Path(work)
    else:
        folder = request.work / f"{Path(architecture).name}-{request.seed}"  # models of the same weights
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _host(run: SuiteRun) -> SuiteHost:
    rates = tuple(GEMM_FLOPS / seconds / 1e9 for seconds in run.gemm)
    gflops = float(np.median(rates)) if rates else None
    return SuiteHost(**host_facts(), gemm_gflops=gflops, gemm_samples_gflops=rates)

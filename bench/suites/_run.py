"""A whole suite: its rows as a JSON document that grows with each of them, so that an interrupted run keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from edgepeft.bench.result.profile_facts import profile_facts

from bench.suites import Suite, suite_named
from bench.suites._suite_run import SuiteRun
from edgepeft.backbones.named import config_of
from edgepeft.bench.measuring.measure import ProgressCallback
from edgepeft.bench.measuring.modes import setting_of
from edgepeft.bench.workloads.gemm import FLOPS_PER_STEP
from edgepeft.errors import UsageError
from edgepeft.host.machine import host_facts
from edgepeft.profiles.loader import load_profile

__all__ = ["SUITE_SCHEMA", "SuiteRequest", "run_suite"]

SUITE_SCHEMA = "edgepeft.suite/1"
_DEFAULT_ARCHITECTURE = "roberta-base"  # the seeds' backbone
_ROUNDS, _MAX_SECONDS = 30, 600.0


@dataclass(frozen=True)
class SuiteRequest:
    """What was asked; ``max_seconds`` is the time after which a comparison begins no new round."""

    suite: str
    profile: str
    backbone: str | None = None
    rounds: int | None = None
    max_seconds: float | None = None
    seed: int = 0


def run_suite(
    request: SuiteRequest,
    *,
    progress: ProgressCallback = lambda what, done, total: None,
    keep: Callable[[dict[str, Any]], object] = lambda document: None,
    suite: Suite | None = None,
) -> dict[str, Any]:
    """Measure a suite; ``keep`` gets the document after every row.  ``suite``: tests bring their own.

    Raises:
        UnknownName: no such suite, profile or architecture.
        MissingPackage: PyTorch, which builds the tasks' modules, is not installed.
        EdgepeftError: a worker failed.
    """
    for option, number in (("--rounds", request.rounds), ("--max-seconds", request.max_seconds)):
        if number is not None and not number > 0:
            raise UsageError(f"{option} must be above 0, got {number}.")
    chosen = suite or suite_named(request.suite)
    architecture = request.backbone or _DEFAULT_ARCHITECTURE
    config_of(architecture)  # that there is one, before anything is made
    profile = load_profile(request.profile)
    setting = setting_of("limits", profile)
    with tempfile.TemporaryDirectory(prefix="edgepeft-suite-") as work:
        run = SuiteRun(
            Path(work),
            architecture,
            setting.limits,
            setting.threads,
            request.rounds or _ROUNDS,
            request.max_seconds or _MAX_SECONDS,
            request.seed,
            progress,
        )
        rows: list[dict[str, Any]] = []

        def document() -> dict[str, Any]:
            return {
                "schema": SUITE_SCHEMA,
                "suite": request.suite,
                "mode": setting.mode,
                "title": chosen.TITLE,
                "host": _host(run),
                "profile": profile_facts(profile, setting.limits, run.in_force, setting.notes),
                "model": {"name": run.architecture, "random_weights": True},
                "threads": run.threads,
                "rounds": run.rounds,
                "seed": run.seed,
                "rows": rows,
            }

        for row in _rows(chosen, run):
            rows.append(row)
            keep(document())
        return document()


def _rows(suite: Suite, run: SuiteRun) -> Iterator[dict[str, Any]]:
    for row in suite.measure(run):
        yield row.to_json()


def _host(run: SuiteRun) -> dict[str, Any]:
    rates = [FLOPS_PER_STEP / seconds / 1e9 for seconds in run.gemm]
    return {**host_facts(), "gemm_gflops": float(np.median(rates)) if rates else None, "gemm_samples_gflops": rates}

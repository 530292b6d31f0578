"""Several scenarios one after the other, into one document: what an interrupted run has, a later one keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgepeft.bench.measuring.measure import ProgressCallback, Start
from edgepeft.bench.planning.resolve import workloads_of
from edgepeft.bench.result.result_file import ResultFile
from edgepeft.bench.run import BenchRequest, Outcome, run_benchmark
from edgepeft.errors import DataError, DoesNotFit, UsageError

__all__ = ["BenchSession", "earlier_result", "run_scenarios"]

_Document = dict[str, Any]


class BenchSession:
    """The document so far, what did not fit, and whether somebody pressed Ctrl-C."""

    def __init__(self, document: _Document | None = None) -> None:
        self.document: _Document = document or {}
        self.failures: list[DoesNotFit] = []
        self.interrupted = False

    @property
    def completed(self) -> list[list[str]]:
        """[scenario, workload] pairs that are done."""
        found: list[list[str]] = self.document.get("completed", [])
        return found

    def add(self, outcome: Outcome, scenario: str, workloads: Sequence[str]) -> None:
        """Another scenario's rows; they replace those that an interrupted run left of it."""
        self.failures += outcome.failures
        interrupted = {one.unit.workload for one in outcome.measured if one.interrupted}
        self.interrupted = self.interrupted or bool(interrupted)
        name = outcome.document["schedule"]["scenario"]
        old = [
            row
            for row in self.document.get("results", [])
            if row.get("scenario") != name or row.get("workload") not in workloads
        ]
        done = [[scenario, workload] for workload in workloads if workload not in interrupted]
        merged = {**outcome.document, "results": [*old, *outcome.document["results"]]}
        merged["completed"] = [*self.completed, *done]
        merged["schedules"] = [*self.document.get("schedules", []), outcome.document["schedule"]]
        if self.document:
            merged["host"] = _host(self.document["host"], outcome.document["host"])
            merged["metrics"] = _metrics(self.document.get("metrics", []), outcome.document["metrics"])
        self.document = merged


def _host(before: Mapping[str, Any], now: Mapping[str, Any]) -> _Document:
    """The host now, with the GEMM rates of all scenarios."""
    merged = dict(now)
    for name in ("gemm_samples_gflops", "pytorch_gemm_samples_gflops"):
        rates = {workload: list(found) for workload, found in before.get(name, {}).items()}
        for workload, found in now.get(name, {}).items():
            rates.setdefault(workload, []).extend(found)
        merged[name] = rates
    for name in ("gemm_gflops", "pytorch_gemm_gflops"):
        merged[name] = now.get(name) or before.get(name)
    return merged


def _metrics(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each thing once."""
    return list({entry["of"]: entry for entry in (*before, *now)}.values())


def run_scenarios(
    request: BenchRequest,
    scenarios: Sequence[str],
    *,
    keep: Callable[[_Document], object] = lambda document: None,
    earlier: Mapping[str, Any] | None = None,
    progress: ProgressCallback = lambda what, done, total: None,
    start: Start | None = None,
) -> BenchSession:
    """Measure the scenarios; ``keep`` gets the document after each.  ``earlier``: what a run before this one kept.

    Raises:
        UsageError: as ``run``; the earlier run was asked for something else.
    """
    asked = _asked(request)
    session = BenchSession(_continued(earlier, asked) if earlier is not None else None)
    for scenario in dict.fromkeys(scenarios):
        wanted = workloads_of(replace(request, scenario=scenario))
        left = tuple(workload for workload in wanted if [scenario, workload] not in session.completed)
        if request.timed and not left:
            continue
        outcome = run_benchmark(replace(request, scenario=scenario, workloads=left), progress=progress, start=start)
        outcome.document["schedule"]["scenario"] = _name(outcome, scenario)
        session.add(outcome, scenario, left)
        session.document["request"] = asked
        keep(session.document)
        if session.interrupted:
            break
    return session


def _name(outcome: Outcome, scenario: str) -> str:
    """As its rows call it; of a file of one's own that is the name inside."""
    rows = outcome.document["results"]
    return str(rows[0]["scenario"]) if rows else scenario


def _asked(request: BenchRequest) -> _Document:
    """What was asked, as JSON has it; scenarios may be added later, and the time that each may take does not matter."""
    left_out = {"scenario", "max_seconds"}
    plain: _Document = json.loads(json.dumps(asdict(request), default=str))
    return {name: value for name, value in plain.items() if name not in left_out}


def _continued(earlier: Mapping[str, Any], asked: Mapping[str, Any]) -> _Document:
    before = earlier.get("request")
    if not isinstance(before, Mapping):
        raise UsageError("--resume: the file does not say what was asked; measure anew without --resume.")
    other = [name for name in {**before, **asked} if before.get(name) != asked.get(name)]
    if other:
        told = ", ".join(f"{name} was {before.get(name)} and is {asked.get(name)}" for name in sorted(other))
        raise UsageError(f"--resume continues what was asked before: {told}. Give the same options, or another --json.")
    return dict(earlier)


def earlier_result(path: Path) -> Mapping[str, Any] | None:
    """What a run kept there; None where there is nothing yet.

    Raises:
        DataError: the file is no result of a run, or its parts do not fit together.
    """
    if not path.exists():
        return None
    document = ResultFile.open(path).document
    pairs = document.get("completed")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f"{path} does not say what is complete; measure anew without --resume.")
    if not isinstance(document.get("schedules"), list) or not isinstance(document.get("host"), Mapping):
        raise DataError(f"{path} has no schedule or no host; measure anew without --resume.")
    return document

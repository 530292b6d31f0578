"""Several scenarios one after the other, into one document: what an interrupted run has, a later one keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import JsonValue

from edgepeft.bench.measuring.measure import ProgressCallback, Start
from edgepeft.bench.measuring.sampler import Budget
from edgepeft.bench.planning.resolve import workloads_of
from edgepeft.bench.result.parts import GemmRates
from edgepeft.bench.result.result_file import ResultFile
from edgepeft.bench.result.schema import BenchHost, BenchResult
from edgepeft.bench.run import BenchRequest, Outcome, run_benchmark
from edgepeft.common.errors import DataError, DoesNotFit, UsageError

__all__ = ["BenchSession", "earlier_result", "run_scenarios"]


_LEAST_S = 1e-3  # a bound is above 0; nothing fits into it


class BenchSession:
    """The result so far, what did not fit, and whether Ctrl-C was pressed."""

    def __init__(self, earlier: BenchResult | None = None) -> None:
        self.result = earlier or BenchResult(results=())
        self.failures: list[DoesNotFit] = []
        self.interrupted = False

    @property
    def completed(self) -> tuple[tuple[str, str], ...]:
        """(scenario, workload) pairs that are done."""
        return self.result.completed or ()

    def add(self, outcome: Outcome, scenario: str, workloads: Sequence[str]) -> None:
        """Another scenario's rows; they replace those that an interrupted run left of it."""
        self.failures += outcome.failures
        interrupted = {one.unit.workload for one in outcome.measured if one.interrupted}
        self.interrupted = self.interrupted or bool(interrupted)
        old, new = self.result, outcome.result
        # As its rows name it; of a file of one's own that is the name inside.
        name = new.results[0].scenario if new.results else scenario
        schedule = new.schedule.model_copy(update={"scenario": name})
        kept = [row for row in old.results if row.scenario != name or row.workload not in workloads]
        done = ((scenario, workload) for workload in workloads if workload not in interrupted)
        self.result = new.model_copy(
            update={
                "host": _host(old.host, new.host),
                "schedule": schedule,
                "metrics": tuple({entry.of: entry for entry in (*old.metrics, *new.metrics)}.values()),
                "results": (*kept, *new.results),
                "completed": (*self.completed, *done),
                "schedules": (*(old.schedules or ()), schedule),
            }
        )


def _host(before: BenchHost, now: BenchHost) -> BenchHost:
    return now.model_copy(
        update={
            "gemm_gflops": now.gemm_gflops or before.gemm_gflops,
            "gemm_samples_gflops": _both(before.gemm_samples_gflops, now.gemm_samples_gflops),
            "pytorch_gemm_gflops": now.pytorch_gemm_gflops or before.pytorch_gemm_gflops,
            "pytorch_gemm_samples_gflops": _both(before.pytorch_gemm_samples_gflops, now.pytorch_gemm_samples_gflops),
        }
    )


def _both(before: GemmRates, now: GemmRates) -> GemmRates:
    return {name: (*before.get(name, ()), *now.get(name, ())) for name in {**before, **now}}


def run_scenarios(
    request: BenchRequest,
    scenarios: Sequence[str],
    *,
    keep: Callable[[BenchResult], object] = lambda result: None,
    earlier: BenchResult | None = None,
    progress: ProgressCallback = lambda what, done, total: None,
    start: Start | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> BenchSession:
    """Measure the scenarios; ``keep`` gets the result after each.  ``earlier``: what a run before this one kept.

    ``request.max_seconds`` is for all of them, in equal parts; ``say`` is told how long each will take.
    """
    asked = _asked(request)
    if earlier is not None:
        _refuse_other_request(earlier, asked)
    session = BenchSession(earlier)
    budget, names = Budget.of(request.max_seconds), list(dict.fromkeys(scenarios))
    for number, scenario in enumerate(names):
        wanted = workloads_of(replace(request, scenario=scenario))
        left = tuple(workload for workload in wanted if (scenario, workload) not in session.completed)
        if request.timed and not left:
            continue
        most_s = None if request.max_seconds is None else max(budget.part(len(names) - number).left_s, _LEAST_S)
        asked_now = replace(request, scenario=scenario, workloads=left, max_seconds=most_s)
        outcome = run_benchmark(asked_now, progress=progress, start=start, say=say)
        session.add(outcome, scenario, left)
        session.result = session.result.model_copy(update={"request": asked})
        keep(session.result)
        if session.interrupted:
            break
    return session


def _asked(request: BenchRequest) -> dict[str, JsonValue]:
    """What was asked, as JSON has it; scenarios may be added later, and the time that each may take does not matter."""
    left_out = {"scenario", "max_seconds"}
    plain: dict[str, JsonValue] = json.loads(json.dumps(asdict(request), default=str))
    return {name: value for name, value in plain.items() if name not in left_out}


def _refuse_other_request(earlier: BenchResult, asked: dict[str, JsonValue]) -> None:
    before = earlier.request
    if before is None:
        raise UsageError("--resume: the file does not record what was asked; measure anew without --resume.")
    if other := sorted(name for name in {**before, **asked} if before.get(name) != asked.get(name)):
        changes = ", ".join(f"{name} was {before.get(name)} and is {asked.get(name)}" for name in other)
        raise UsageError(
            f"--resume continues what was asked before: {changes}. Give the same options, or another --json."
        )


def earlier_result(path: Path) -> BenchResult | None:
    """What a run kept there; None where there is nothing yet."""
    if not path.exists():
        return None
    result = ResultFile.open(path).document
    if result.completed is None or result.schedules is None:
        raise DataError(f"{path} does not record what is complete; measure anew without --resume.")
    return result

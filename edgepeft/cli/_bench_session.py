"""``edgepeft bench`` of one version: scenario after scenario, the JSON kept after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from edgepeft.cli._result import result_file, show_bench_result, shown_steps
from edgepeft.errors import DoesNotFit, UsageError

if TYPE_CHECKING:
    from edgepeft.bench.result.schema import BenchResult
    from edgepeft.bench.run import BenchRequest

__all__ = ["INTERRUPTED", "measure_scenarios"]

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it


def measure_scenarios(
    request: BenchRequest, scenarios: Sequence[str], json: str | None, *, resume: bool
) -> Sequence[DoesNotFit]:
    """Measure or count, and show the result; what did not fit the profile's memory.

    Raises:
        UsageError: options that make no sense; ``resume`` without a file.
    """
    from edgepeft.bench.session import earlier_result, run_scenarios
    from edgepeft.resources import write_json

    target = result_file(json)
    if resume and target is None:
        raise UsageError("--resume continues the file of --json; name it.")

    def keep(result: BenchResult) -> None:
        if target is not None:
            write_json(target, result.to_json())

    earlier = earlier_result(target) if resume and target is not None else None
    with shown_steps() as progress:
        session = run_scenarios(request, scenarios, keep=keep, earlier=earlier, progress=progress)
    show_bench_result(session.result, json)
    if session.interrupted:
        raise typer.Exit(INTERRUPTED)
    return session.failures

"""``edgepeft bench --against``: two versions of edgepeft in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from edgepeft.cli._options import share_of
from edgepeft.cli._output import INTERRUPTED, messages, result_file, show_bench_result, shown_steps
from edgepeft.errors import DoesNotFit, ThroughputRegression, UsageError

if TYPE_CHECKING:
    from edgepeft.bench.run import BenchRequest

__all__ = ["OtherVersion", "measure_against"]

_MAX_REGRESSION = "5%"


@dataclass(frozen=True)
class OtherVersion:
    """The options of ``--against``; None where one is not given."""

    name: str | None
    max_regression: str | None
    launches: int | None

    def __post_init__(self) -> None:
        given = {"--max-regression": self.max_regression, "--launches": self.launches}
        stray = [option for option, value in given.items() if value is not None and self.name is None]
        if stray:
            raise UsageError(f"{', '.join(stray)}: of use with --against alone; name the other version there.")


def measure_against(request: BenchRequest, other: OtherVersion, json: str | None) -> Sequence[DoesNotFit]:
    """Measure this version and the other, and show the result; what did not fit the profile's memory.

    Raises:
        UsageError: options that two versions cannot be measured with.
        ThroughputRegression: this version is slower.
    """
    allowed = share_of("--max-regression", other.max_regression or _MAX_REGRESSION)
    result_file(json)
    if request.mode != "limits":
        raise UsageError("--against compares two versions at this host's speed; leave --mode out.")
    if not request.timed:
        raise UsageError("--against compares times, and --deterministic takes none; leave one out.")
    from edgepeft.bench.gate.against import LAUNCHES, SideBySide
    from edgepeft.bench.run import run_benchmark

    with ExitStack() as stack:
        launches = LAUNCHES if other.launches is None else other.launches
        side = SideBySide.open(other.name or "", stack, launches=launches)
        progress = stack.enter_context(shown_steps())
        outcome = run_benchmark(request, progress=progress, against=side)
        result, slower = side.annotate(outcome.result, outcome.measured, allowed)
    show_bench_result(result, json)
    if any(one.interrupted for one in outcome.measured):
        done = max(len(one.series.samples) for one in outcome.measured)
        kept = "shown" if json is None else "in the JSON"
        messages().print(f"{done} of {result.schedule.rounds} rounds are {kept}; no verdict is given.")
        raise typer.Exit(INTERRUPTED)
    if slower:
        raise ThroughputRegression(
            f"slower than {other.name} by more than {allowed:.1%}, in the same rounds: {'; '.join(slower)}."
        )
    return outcome.failures

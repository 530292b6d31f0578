"""Measure inference and fine-tuning throughput, interleaved, in processes under the profile's limits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from edgepeft.cli._options import command_of
from edgepeft.cli._output import INTERRUPTED, result_file, show_result
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import DoesNotFit, EdgepeftError, ThroughputRegression, UsageError
from edgepeft.common.progress import say, shown_steps
from edgepeft.options.base import share_of
from edgepeft.options.verbs import BenchOptions

if TYPE_CHECKING:
    from edgepeft.bench.result.schema import BenchResult

PANEL = "Measure"


@command_of(BenchOptions, "bench")
def command(
    options: BenchOptions,
    scenario: Annotated[
        list[str] | None, Option(help="How work arrives, or a TOML file; may repeat. Default: offline.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with what an interrupted run wrote to --json.")] = False,
    against: Annotated[
        str | None, Option(help="A git revision, or a folder with edgepeft: measured in the same rounds.")
    ] = None,
    max_regression: Annotated[str | None, Option(help="With --against: the loss that is let pass. Default 5%.")] = None,
    launches: Annotated[int | None, Option(help="With --against: times that processes start anew. Default: 2.")] = None,
    json: Annotated[str | None, Option(help="Write the result there; - is standard output.")] = None,
) -> None:
    from edgepeft.device.profiles import SETTABLE, variant_of

    settings = dict(options.settings)
    own = [f"{name}={settings.pop(name)}" for name in options.settings if name in SETTABLE]
    profile = variant_of(options.profile, own)
    options = options.model_copy(update={"profile": profile, "settings": settings, "counted": True})
    scenarios = tuple(dict.fromkeys(scenario or ["offline"]))
    given = {"--max-regression": max_regression, "--launches": launches}
    stray = [option for option, value in given.items() if value is not None and against is None]
    if stray:
        raise UsageError(f"{', '.join(stray)}: of use with --against alone; name the other version there.")
    if against is not None and (len(scenarios) > 1 or resume):
        raise UsageError("--against measures one scenario, in one run; leave --resume and further --scenario out.")
    if against is None:
        failures = _measure_scenarios(options, scenarios, json, resume=resume)
    else:
        allowed = share_of("--max-regression", max_regression or "5%")
        options = options.model_copy(update={"scenario": scenarios[0]})
        failures = _measure_against(options, against, allowed, launches, json)
    if failures:
        raise DoesNotFit("; ".join(str(failure) for failure in failures))


def _measure_scenarios(
    options: BenchOptions, scenarios: Sequence[str], json: str | None, *, resume: bool
) -> Sequence[DoesNotFit]:
    """Measure or count one after the other, the JSON kept after each; what did not fit the profile's memory."""
    from edgepeft.bench.run import earlier_result, run_scenarios

    target = result_file(json)
    if resume and target is None:
        raise UsageError("--resume continues the file of --json; name it.")

    def keep(result: BenchResult) -> None:
        if target is not None:
            write_json(target, result.to_json())

    earlier = earlier_result(target) if resume and target is not None else None
    with shown_steps() as progress:
        session = run_scenarios(options, scenarios, keep=keep, earlier=earlier, progress=progress, say=say)
    _show(session.result, json)
    if session.interrupted:
        raise typer.Exit(INTERRUPTED)
    rows = session.result.results
    late = [warning for row in rows for warning in row.warnings if warning.startswith("left out")]
    if late and not session.failures and not any(row.samples_s for row in rows):
        raise EdgepeftError(f"nothing was measured: {late[0]}.")
    return session.failures


def _measure_against(
    options: BenchOptions, other: str, allowed: float, launches: int | None, json: str | None
) -> Sequence[DoesNotFit]:
    """Measure this version and the other, and show the result; what did not fit the profile's memory."""
    result_file(json)
    if options.mode != "limits":
        raise UsageError("--against compares two versions at this host's speed; leave --mode out.")
    if not options.timed:
        raise UsageError("--against compares times, and --deterministic takes none; leave one out.")
    from edgepeft.bench.against import LAUNCHES, SideBySide
    from edgepeft.bench.run import run_benchmark

    with ExitStack() as stack:
        side = SideBySide.open(other, stack, launches=LAUNCHES if launches is None else launches)
        progress = stack.enter_context(shown_steps())
        outcome = run_benchmark(options, progress=progress, against=side, say=say)
        result, slower = side.annotate(outcome.result, outcome.measured, allowed)
    _show(result, json)
    if any(one.series.interrupted for one in outcome.measured):
        done = max(len(one.series.samples) for one in outcome.measured)
        kept = "shown" if json is None else "in the JSON"
        say(f"{done} of {result.schedule.rounds} rounds are {kept}; no verdict is given.")
        raise typer.Exit(INTERRUPTED)
    rows = zip(result.results, outcome.measured, strict=True)
    pairless = [one.unit.label for row, one in rows if row.against is None and one.unit.job and not one.series.failure]
    late = "; ".join(pairless)
    if late:
        less = "Raise --max-seconds, or ask for less: --engine, --workload, --task."
        late = f"For want of time these were not compared with {other}: {late}. {less}"
    if slower:
        said = f"slower than {other} by more than {allowed:.1%}, in the same rounds: {'; '.join(slower)}."
        raise ThroughputRegression(f"{said} {late}".strip())
    if not outcome.failures and all(row.against is None for row in result.results):
        why = next((warning for row in result.results for warning in row.warnings), "no round has both")
        raise UsageError(f"nothing was compared with {other}: {why}.")
    if late and not outcome.failures:
        raise EdgepeftError(late)
    return outcome.failures


def _show(result: BenchResult, json: str | None) -> None:
    from edgepeft.bench.report.tables import bench_table

    if result.instructions_skipped:
        say(f"instructions were not counted: {result.instructions_skipped}")
    show_result(result, json, bench_table)

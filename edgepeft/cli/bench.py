"""``edgepeft bench``: throughput under a device's limits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from edgepeft.cli import _bench_options as options
from edgepeft.cli._options import NoCache, settings_of, share_of
from edgepeft.cli._output import INTERRUPTED, messages, result_file, show_bench_result
from edgepeft.cli._progress import say, shown_steps
from edgepeft.common.errors import DoesNotFit, ThroughputRegression, UsageError

if TYPE_CHECKING:
    from edgepeft.bench.result.schema import BenchResult
    from edgepeft.bench.run import BenchRequest

__all__ = ["command"]

PANEL = "Measure"

_MAX_REGRESSION = "5%"


@dataclass(frozen=True)
class _OtherVersion:
    """The options of ``--against``; None where one is not given."""

    name: str | None
    max_regression: str | None
    launches: int | None

    def __post_init__(self) -> None:
        given = {"--max-regression": self.max_regression, "--launches": self.launches}
        stray = [option for option, value in given.items() if value is not None and self.name is None]
        if stray:
            raise UsageError(f"{', '.join(stray)}: of use with --against alone; name the other version there.")


def command(
    bundle: options.BundleArgument = None,
    *,
    profile: options.ProfileName,
    mode: options.Mode = "limits",
    engine: options.Engines = None,
    workload: options.Workloads = None,
    task: options.TaskNames = None,
    method: options.Methods = None,
    set_: options.SettingsOption = None,
    backbone: options.BackboneName = None,
    batch_size: options.BatchSize = None,
    length: options.Length = None,
    new_tokens: options.NewTokens = None,
    lengths: options.LengthsSource = None,
    peer: options.Peers = None,
    scenario: options.Scenarios = None,
    resume: options.Resume = False,
    rounds: options.Rounds = None,
    max_seconds: options.MaxSeconds = None,
    seed: options.Seed = 0,
    no_cache: NoCache = False,
    against: options.Against = None,
    max_regression: options.MaxRegression = None,
    launches: options.Launches = None,
    deterministic: options.Deterministic = False,
    instructions: options.Instructions = False,
    profile_ops: options.ProfileOps = False,
    json: options.JsonFile = None,
) -> None:
    """Measure inference and fine-tuning throughput, interleaved, in processes under the profile's limits."""
    from edgepeft.bench.run import BenchRequest

    variant, settings = _of_profile_and_method(profile, set_ or [])
    request = BenchRequest(
        profile=variant,
        bundle=bundle,
        backbone=backbone,
        methods=tuple(method or ()),
        settings=settings,
        tasks=tuple(task or ()),
        engines=tuple(dict.fromkeys(engine or ())),
        workloads=tuple(dict.fromkeys(workload or ())),
        batch_size=batch_size,
        length=length,
        new_tokens=new_tokens,
        lengths=lengths,
        peers=tuple(peer or ()),
        rounds=rounds,
        max_seconds=max_seconds,
        seed=seed,
        mode=mode,
        cache=not no_cache,
        timed=not deterministic,
        counted=True,
        instructions=instructions,
        profile_ops=profile_ops,
    )
    scenarios = tuple(dict.fromkeys(scenario or ["offline"]))
    _measure(request, scenarios, json, _OtherVersion(against, max_regression, launches), resume=resume)


def _measure(
    request: BenchRequest, scenarios: Sequence[str], json: str | None, other: _OtherVersion, *, resume: bool
) -> None:
    if other.name is not None and (len(scenarios) > 1 or resume):
        raise UsageError("--against measures one scenario, in one run; leave --resume and further --scenario out.")
    if other.name is None:
        failures = _measure_scenarios(request, scenarios, json, resume=resume)
    else:
        failures = _measure_against(replace(request, scenario=scenarios[0]), other, json)
    if failures:
        raise DoesNotFit("; ".join(str(failure) for failure in failures))


def _measure_scenarios(
    request: BenchRequest, scenarios: Sequence[str], json: str | None, *, resume: bool
) -> Sequence[DoesNotFit]:
    """Measure or count one after the other, the JSON kept after each; what did not fit the profile's memory."""
    from edgepeft.bench.session import earlier_result, run_scenarios
    from edgepeft.common.atomic import write_json

    target = result_file(json)
    if resume and target is None:
        raise UsageError("--resume continues the file of --json; name it.")

    def keep(result: BenchResult) -> None:
        if target is not None:
            write_json(target, result.to_json())

    earlier = earlier_result(target) if resume and target is not None else None
    with shown_steps() as progress:
        session = run_scenarios(request, scenarios, keep=keep, earlier=earlier, progress=progress, say=say)
    show_bench_result(session.result, json)
    if session.interrupted:
        raise typer.Exit(INTERRUPTED)
    return session.failures


def _of_profile_and_method(profile: str, settings: Sequence[str]) -> tuple[str, dict[str, str]]:
    """``rpi4`` with ``memory=2GB`` is ``rpi4:memory=2GB``; other settings are hyperparameters of the method."""
    from edgepeft.device.profiles import SETTABLE

    own = [setting for setting in settings if setting.partition("=")[0] in SETTABLE]
    variant = f"{profile}{',' if ':' in profile else ':'}{','.join(own)}" if own else profile
    return variant, settings_of([setting for setting in settings if setting not in own])


def _measure_against(request: BenchRequest, other: _OtherVersion, json: str | None) -> Sequence[DoesNotFit]:
    """Measure this version and the other, and show the result; what did not fit the profile's memory."""
    allowed = share_of("--max-regression", other.max_regression or _MAX_REGRESSION)
    result_file(json)
    if request.mode != "limits":
        raise UsageError("--against compares two versions at this host's speed; leave --mode out.")
    if not request.timed:
        raise UsageError("--against compares times, and --deterministic takes none; leave one out.")
    from edgepeft.bench.against import LAUNCHES, SideBySide
    from edgepeft.bench.run import run_benchmark

    with ExitStack() as stack:
        launches = LAUNCHES if other.launches is None else other.launches
        side = SideBySide.open(other.name or "", stack, launches=launches)
        progress = stack.enter_context(shown_steps())
        outcome = run_benchmark(request, progress=progress, against=side, say=say)
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

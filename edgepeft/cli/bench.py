"""``edgepeft bench``: throughput under a device's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.cli._output import messages, print_json, table_console
from edgepeft.errors import DoesNotFit, ThroughputRegression, UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

    from edgepeft.bench.run import BenchRequest

__all__ = ["command"]

_STDOUT = "-"
_SCENARIO = "offline"
_INTERRUPTED = 130
_MODE = "limits"
_OF_TWO_VERSIONS = ("max_regression", "launches")


def command(
    ctx: typer.Context,
    bundle: Annotated[
        Path | None,
        typer.Argument(help="A bundle; without one, random weights of --backbone.", show_default=False),
    ] = None,
    *,
    profile: Annotated[str, typer.Option(help="The device whose cores and memory are in force.")],
    mode: Annotated[
        str,
        typer.Option(
            help="limits: the device's cores and memory at this host's speed; calibrated: its speed too; "
            "predicted: nothing runs. On the device itself the first two measure."
        ),
    ] = _MODE,
    engine: Annotated[list[str] | None, typer.Option(help="onnxruntime or pytorch; may repeat. Default: both.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="infer or finetune; may repeat. Default: both.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="A task of the bundle; may repeat. Default: all.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Tasks of that method; without a bundle, a fresh delta of it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="memory=2GB of the profile, or --method's name=value; may repeat."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A named architecture, with random weights. Default: roberta-base.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts in a batch. Default: the scenario's 32.")] = None,
    length: Annotated[int | None, typer.Option(help="Every text has this many tokens. Default: 128.")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Real lengths: sst2, mrpc, rte, or a file (an integer a line, or TOML).")
    ] = None,
    peer: Annotated[
        list[Path] | None, typer.Option(help="Another encoder as ONNX, measured in the same rounds; may repeat.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(help="How work arrives, or a TOML file; may repeat. Default: offline.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what an interrupted run wrote to --json, measure the rest.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(help="Samples of each. Default: 30.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Begin no new round after this time, for each workload. Default: 600.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of token ids, weights and the order within rounds.")] = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="A private copy of the weights for each task; nothing is kept on disk.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(help="A git revision, a release, or a folder with edgepeft: measured in the same rounds."),
    ] = None,
    max_regression: Annotated[str, typer.Option(help="With --against: the smallest loss that matters.")] = "5%",
    launches: Annotated[int, typer.Option(help="With --against: how often every process is started anew.")] = 2,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Count nodes, operations and bytes only; nothing is timed.")
    ] = False,
    instructions: Annotated[
        bool, typer.Option("--instructions", help="Also count instructions on an emulated Cortex-A72 (needs QEMU).")
    ] = False,
    profile_ops: Annotated[
        bool, typer.Option("--profile-ops", help="Also say where inference's time goes, by operator and layer.")
    ] = False,
    json: Annotated[str | None, typer.Option(help="Write the result there; - is standard output.")] = None,
) -> None:
    """Measure inference and fine-tuning throughput, interleaved, in processes under the profile's limits."""
    given = _given(ctx)
    _check_file(json)
    from edgepeft.bench.run import BenchRequest
    from edgepeft.cli._settings import settings_of
    from edgepeft.cli._shares import share_of

    scenarios = tuple(dict.fromkeys(scenario or [_SCENARIO]))
    target = None if json in (None, _STDOUT) else Path(str(json))
    if deterministic and profile_ops:
        raise UsageError("--profile-ops takes times, and --deterministic takes none; leave one out.")
    if resume and target is None:
        raise UsageError("--resume continues the file of --json; name it.")
    request = BenchRequest(
        profile=_variant(profile, set_ or []),
        bundle=bundle,
        backbone=backbone,
        methods=tuple(method or ()),
        settings=settings_of([text for text in set_ or [] if not _is_of_profile(text)]),
        tasks=tuple(task or ()),
        engines=tuple(dict.fromkeys(engine or ())),
        workloads=tuple(dict.fromkeys(workload or ())),
        batch_size=batch_size,
        length=length,
        lengths=lengths,
        peers=tuple(peer or ()),
        rounds=rounds,
        max_seconds=max_seconds,
        seed=seed,
        mode=mode,
        scenario=scenarios[0],
        cache=not no_cache,
        timed=not deterministic,
        counted=True,
        instructions=instructions,
        profile_ops=profile_ops,
    )
    if against is None:
        if others := [given[name] for name in _OF_TWO_VERSIONS if name in given]:
            raise UsageError(f"{', '.join(others)}: of use with --against alone; name the other version there.")
        failures = _session(request, scenarios, target, resume=resume, shown=json)
    else:
        if len(scenarios) > 1 or resume:
            raise UsageError("--against measures one scenario, in one run; leave --resume and further --scenario out.")
        allowed = share_of("--max-regression", max_regression)
        failures = _against(request, against, launches, allowed, json)
    if failures:
        raise DoesNotFit("; ".join(str(failure) for failure in failures))


def _check_file(json: str | None) -> None:
    """Before minutes of measuring, not after."""
    from edgepeft.resources import check_target

    if json is None or json == _STDOUT:
        return
    if Path(json).is_dir():
        raise UsageError(f"--json {json} is a folder; name a file in it.")
    check_target(Path(json))


def _given(ctx: typer.Context) -> dict[str, str]:
    """What stands on the command line: a parameter's name -> as it is written there."""
    return {
        str(one.name): one.opts[0] if one.param_type_name == "option" else str(one.name).upper()
        for one in ctx.command.params
        # By name: a newer typer brings a click of its own, whose enum is another one.
        if (source := ctx.get_parameter_source(str(one.name))) is not None and source.name == "COMMANDLINE"
    }


def _session(
    request: BenchRequest, scenarios: Sequence[str], target: Path | None, *, resume: bool, shown: str | None
) -> Sequence[DoesNotFit]:
    """Measure, keeping the JSON after every scenario; what did not fit."""
    from edgepeft.bench.session import earlier_result, run_scenarios
    from edgepeft.resources import write_json

    def keep(document: dict[str, Any]) -> None:
        if target is not None:
            write_json(target, document)

    earlier = earlier_result(target) if resume and target is not None else None
    with _progress() as bar:
        session = run_scenarios(request, scenarios, keep=keep, earlier=earlier, progress=_shower(bar))
    _show(session.document, shown)
    if session.interrupted:
        raise typer.Exit(_INTERRUPTED)
    return session.failures


def _against(
    request: BenchRequest, asked: str, launches: int, allowed: float, shown: str | None
) -> Sequence[DoesNotFit]:
    """Measure two versions in the same rounds; what did not fit.

    Raises:
        UsageError: options that two versions cannot be measured with.
        ThroughputRegression: this one is slower.
    """
    if request.mode != _MODE:
        raise UsageError("--against compares two versions at this host's speed; leave --mode out.")
    if not request.timed:
        raise UsageError("--against compares times, and --deterministic takes none; leave one out.")
    from edgepeft.bench.gate.against import SideBySide
    from edgepeft.bench.run import run_benchmark

    with ExitStack() as stack:
        side = SideBySide.open(asked, stack, launches=launches)
        bar = stack.enter_context(_progress())
        outcome = run_benchmark(request, progress=_shower(bar), against=side)
        slower = side.annotate(outcome.document, outcome.measured, allowed)
    _show(outcome.document, shown)
    if any(one.interrupted for one in outcome.measured):
        done = max(len(one.series.samples) for one in outcome.measured)
        kept = "shown" if shown is None else "in the JSON"
        messages().print(f"{done} of {outcome.document['schedule']['rounds']} rounds are {kept}; no verdict is given.")
        raise typer.Exit(_INTERRUPTED)
    if slower:
        raise ThroughputRegression(
            f"slower than {asked} by more than {allowed:.1%}, in the same rounds: {'; '.join(slower)}."
        )
    return outcome.failures


def _shower(bar: Progress) -> Callable[[str, int, int], None]:
    """What shows a step of the work."""
    current = bar.add_task("starting", total=None)

    def show(what: str, done: int, total: int) -> None:
        bar.update(current, description=what, completed=done, total=total, refresh=True)

    return show


def _is_of_profile(setting: str) -> bool:
    from edgepeft.profiles.variants import SETTABLE

    return setting.partition("=")[0] in SETTABLE


def _variant(profile: str, settings: list[str]) -> str:
    """``rpi4`` with ``memory=2GB`` is ``rpi4:memory=2GB``."""
    own = ",".join(filter(_is_of_profile, settings))
    return f"{profile}{',' if ':' in profile else ':'}{own}" if own else profile


def _progress() -> AbstractContextManager[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Redrawn when a step ends: a redrawing thread would take time from what is measured.
        auto_refresh=False,
    )


def _show(document: dict[str, Any], target: str | None) -> None:
    """The table, and the JSON where it was asked for; one document alone on standard output."""
    if skipped := document.get("instructions_skipped"):
        messages().print(f"instructions were not counted: {skipped}", markup=False)
    from edgepeft.report.tables import bench_table
    from edgepeft.resources import write_json

    if target == _STDOUT:
        print_json(document)
        return
    if target is not None:
        write_json(Path(target), document)
    table_console().print(bench_table(document))

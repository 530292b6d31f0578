"""``edgepeft bench``: throughput under a device's limits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepeft.cli._options import MaxSeconds, Mode
from edgepeft.cli._output import INTERRUPTED, result_file, show_bench_result
from edgepeft.common.errors import DoesNotFit, ThroughputRegression, UsageError
from edgepeft.common.progress import messages, say, shown_steps
from edgepeft.options.base import NoCache, settings_of, share_of

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


_Bundle = Annotated[
    Path | None, typer.Argument(help="A bundle; without one, random weights of --backbone.", show_default=False)
]
_Method = Annotated[list[str] | None, typer.Option(help="Tasks of that method; without a bundle, a fresh delta of it.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", help="memory=2GB of the profile, or --method's name=value; may repeat.")
]
_Backbone = Annotated[
    str | None, typer.Option(help="A named architecture, with random weights. Default: roberta-base.")
]
_Lengths = Annotated[
    str | None, typer.Option(help="Real lengths: sst2, mrpc, rte, or a file (an integer a line, or TOML).")
]
_Peer = Annotated[
    list[Path] | None, typer.Option(help="Another encoder as ONNX, measured in the same rounds; may repeat.")
]
_Scenario = Annotated[
    list[str] | None, typer.Option(help="How work arrives, or a TOML file; may repeat. Default: offline.")
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="Keep what an interrupted run wrote to --json, measure the rest.")
]
_Against = Annotated[
    str | None,
    typer.Option(help="A git revision, a release, or a folder with edgepeft: measured in the same rounds."),
]
_MaxRegression = Annotated[
    str | None, typer.Option(help="With --against: the smallest loss that matters. Default: 5%.")
]
_Launches = Annotated[
    int | None, typer.Option(help="With --against: how often every process is started anew. Default: 2.")
]
_Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Count nodes, operations and bytes only; nothing is timed.")
]
_Instructions = Annotated[
    bool, typer.Option("--instructions", help="Also count instructions on an emulated Cortex-A72 (needs QEMU).")
]
_ProfileOps = Annotated[
    bool, typer.Option("--profile-ops", help="Also say where inference's time goes, by operator and layer.")
]


def command(
    bundle: _Bundle = None,
    *,
    profile: Annotated[str, typer.Option(help="The device whose cores and memory are in force.")],
    mode: Mode = "limits",
    engine: Annotated[list[str] | None, typer.Option(help="onnxruntime or pytorch; may repeat. Default: both.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="infer or finetune; may repeat. Default: both.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="A task of the bundle; may repeat. Default: all.")] = None,
    method: _Method = None,
    set_: _Set = None,
    backbone: _Backbone = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts in a batch. Default: the scenario's 32.")] = None,
    length: Annotated[int | None, typer.Option(help="Every text has this many tokens. Default: 128.")] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Tokens that tasks write of each text. Default: 32.")] = None,
    lengths: _Lengths = None,
    peer: _Peer = None,
    scenario: _Scenario = None,
    resume: _Resume = False,
    rounds: Annotated[int | None, typer.Option(help="Samples of each. Default: 30.")] = None,
    max_seconds: MaxSeconds = None,
    seed: Annotated[int, typer.Option(help="Of token ids, weights and the order within rounds.")] = 0,
    no_cache: NoCache = False,
    against: _Against = None,
    max_regression: _MaxRegression = None,
    launches: _Launches = None,
    deterministic: _Deterministic = False,
    instructions: _Instructions = False,
    profile_ops: _ProfileOps = False,
    json: Annotated[str | None, typer.Option(help="Write the result there; - is standard output.")] = None,
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
    from edgepeft.bench.run import earlier_result, run_scenarios
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

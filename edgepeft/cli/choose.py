"""Name the cheapest method that fits a budget and is not worse than the best beyond chance."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from edgepeft.cli._options import Variant, command_of
from edgepeft.cli._output import plain_table, print_json, table_console
from edgepeft.cli._scores import local_runs, showing_runs
from edgepeft.common.errors import DoesNotFit, UsageError, look_up, requiring
from edgepeft.common.messages import counted
from edgepeft.common.progress import say, shown_steps, stages
from edgepeft.options.base import LabelColumn, MaxSeconds, Mode, Options, PairColumn, TaskKind, TextColumn
from edgepeft.options.verbs import BenchOptions

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.device.profiles import Profile
    from edgepeft.sweep.choice import Budget, Candidate, Seconds, Selection
    from edgepeft.sweep.folder import Sweep
    from edgepeft.sweep.table import Arm

PANEL = "Train"

# Of a small sweep, the cheapest first: what its time does not allow is left out.
SMALL = ("linear", "bitfit", "lora", "pfeiffer", "compacter", "houlsby", "spartan")
_MINUTES = 20.0
_SAID = {
    "predicted": "costs are predicted, nothing ran",
    "limits": "texts/min are measured under its cores and memory, at this host's speed; memory is predicted",
    "calibrated": "texts/min are measured at its speed, emulated; memory is predicted",
}
_SweepFolder = Annotated[Path | None, Argument(help="A sweep's folder; without it, --data trains.", show_default=False)]
_Throughput = Annotated[str | None, Option(metavar="N/min", help="Texts that all tasks must answer: 60/min, or 1/s.")]
_Memory = Annotated[str | None, Option(metavar="SIZE", help="At most so much, such as 500MB. Default: the device's.")]
_Data = Annotated[str | None, Option(help="A data set of the sweep. Default: the mean of all. Without a sweep, rows.")]


class ChooseOptions(Options):
    """A sweep or the rows of a small one, a device, and what its tasks may take."""

    sweep: _SweepFolder = None
    profile: Annotated[str, Option(help="A device, or the path of a .toml file.")]
    tasks: Annotated[int, Option(min=1, help="Tasks of one backbone that answer each text.")] = 1
    throughput: _Throughput = None
    memory: _Memory = None
    disk: Annotated[str | None, Option(metavar="SIZE", help="All tasks' files together, at most, such as 2MB.")] = None
    length: Annotated[int | None, Option(help="Tokens of a text. Default: 128, or what runs were given.")] = None
    mode: Mode = "predicted"
    max_seconds: MaxSeconds = None
    data: _Data = None
    text_column: TextColumn = None
    pair_column: PairColumn = None
    label_column: LabelColumn = None
    kind: TaskKind = None
    backbone: Annotated[str | None, Option(help="One of the sweep's. Without a sweep, a folder or name.")] = None
    minutes: Annotated[float | None, Option(help=f"Of training, without a sweep. Default: {_MINUTES:g}.")] = None
    out: Annotated[Path | None, Option(help="Where a small sweep is kept; that folder goes on.")] = None
    set_: Variant = None
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of a table.")] = False

    @property
    def of_rows(self) -> dict[str, str]:
        """What is given of the rows of a small sweep."""
        return self.model_dump(include={"text_column", "pair_column", "label_column", "kind"}, exclude_none=True)


@command_of(ChooseOptions, "choose")
def command(options: ChooseOptions) -> None:
    with requiring("train", "choosing a method"):
        from edgepeft.sweep.choice import Budget, candidates, choose
        from edgepeft.sweep.folder import open_sweep
    from edgepeft.device.profiles import load_profile, variant_of
    from edgepeft.tuning.memory import amount_of

    look_up("mode", options.mode, _SAID)
    if options.mode == "predicted" and options.max_seconds is not None:
        raise UsageError("--max-seconds bounds what is measured, and --mode predicted runs nothing; leave one out.")
    variant = variant_of(options.profile, options.set_ or ())
    device = load_profile(variant)
    rate = None if options.throughput is None else _rate(options.throughput)
    memory = device.memory_bytes if options.memory is None else amount_of(options.memory, "--memory")
    disk = None if options.disk is None else amount_of(options.disk, "--disk")
    budget = Budget(rate, min(memory, device.memory_bytes), disk)
    if options.sweep is None:
        opened = _small_sweep(options)
        arms = candidates(opened, None, None)  # it was made of these data and this backbone
    else:
        if given := [n for n in ("minutes", "out") if getattr(options, n) is not None] + list(options.of_rows):
            stray = given[0].replace("_", "-")
            raise UsageError(f"--{stray} is of a small sweep, and SWEEP is there already; leave it or SWEEP out.")
        opened = open_sweep(options.sweep)
        arms = candidates(opened, options.data, options.backbone)
    found = _with_costs(opened, arms, device, options, variant)
    chosen = choose(found, budget)
    if options.as_json:
        document = {
            "schema": "edgepeft.choice/1",
            "profile": device.name,
            "tasks": options.tasks,
            "predicted": options.mode == "predicted",
            "mode": options.mode,
            "chosen": chosen.chosen.method,
            "best": chosen.best.method,
            "not_worse_share": chosen.p,
            "front": list(chosen.front),
            "methods": [
                {
                    "method": each.method,
                    "score": each.score,
                    "runs": [cell.name for arm in each.arms for cell in arm.cells],
                    **vars(each.costs),
                }
                for each in found
            ],
        }
        print_json(document)
        return
    _show(found, chosen, budget, device, options)
    say(_export(opened, chosen))


def _rate(text: str) -> float:
    """``60/min``, ``1/s`` or ``60`` as texts a minute."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(min|s|h))?", text.replace(" ", ""))
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--throughput {text!r}: give texts a minute, a second or an hour, such as 60/min.")
    return float(match[1]) * {"s": 60.0, "h": 1 / 60}.get(match[2], 1.0)


def _with_costs(
    sweep: Sweep, found: Mapping[str, tuple[Arm, ...]], device: Profile, options: ChooseOptions, variant: str
) -> list[Candidate]:
    """The methods with what one task of each costs, measured or predicted; each is exported once."""
    from edgepeft.sweep.choice import Candidate, costs_of, export_untrained

    with tempfile.TemporaryDirectory() as work:
        with stages(1) as stage, stage("exporting each method once"):
            firsts = [first for first, *_ in found.values()]
            source = sweep.options(firsts[0].cells[0])["backbone"]
            bundle = export_untrained([arm.cards[0] for arm in firsts], source, Path(work), options.length)
        measured = None if options.mode == "predicted" else _measured(options, variant, bundle)
        costs = costs_of(bundle, device, tasks=options.tasks, length=options.length, measured=measured)
    return [Candidate(name, arms, cost) for (name, arms), cost in zip(found.items(), costs.values(), strict=True)]


def _measured(options: ChooseOptions, variant: str, bundle: Bundle) -> dict[str, Seconds]:
    """Seconds of one text by task, of `edgepeft bench`'s interleaved rounds under the profile's limits."""
    from edgepeft.bench.run import run_benchmark
    from edgepeft.deploy.cost import checked_length
    from edgepeft.sweep.choice import Seconds

    model, tasks = bundle.architecture, bundle.manifest.tasks
    length = min(checked_length(model, task, 1, options.length, task.max_length) for task in tasks.values())
    request = BenchOptions(
        profile=variant,
        bundle=bundle.folder,
        engines=("onnxruntime",),
        workloads=("infer",),
        batch_size=1,
        length=length,
        max_seconds=options.max_seconds,
        mode=options.mode,
    )
    with shown_steps() as progress:
        outcome = run_benchmark(request, progress=progress, say=say)
    if outcome.failures:
        raise DoesNotFit("; ".join(map(str, outcome.failures)))
    found = {}
    for row in outcome.result.results:
        if row.task is not None and row.statistics is not None and (median := row.statistics.median_s) is not None:
            found[row.task] = Seconds(median, row.statistics.interval_s or (median, median))
    if len(found) < len(tasks):
        raise UsageError(f"the time allowed {len(found)} of {len(tasks)} methods to be measured; raise --max-seconds.")
    return found


def _small_sweep(options: ChooseOptions) -> Sweep:
    """One run of each method, until the time is over; runs that are done in ``out`` stay done."""
    from edgepeft.sweep.local import CellRun
    from edgepeft.sweep.plan import Plan
    from edgepeft.sweep.run import run_sweep, sweep_of

    data, backbone, out = options.data, options.backbone, options.out
    if data is None or backbone is None or out is None:
        raise UsageError("give SWEEP, or what a small one is made of: --data ROWS --backbone FOLDER --out SWEEP.")
    rows = str(Path(data).absolute()) if Path(data).exists() else data
    plan = Plan(backbones=[backbone], methods=list(SMALL), data={"task": {"data": rows, **options.of_rows}})
    sweep = sweep_of(plan, out)
    executor, at_once = local_runs(sweep, None, 1)
    ends = time.monotonic() + 60 * (_MINUTES if options.minutes is None else options.minutes)

    class Over(Exception):
        """The time is over."""

    with showing_runs(sweep, at_once) as tell:

        def watch(told: Any) -> None:
            tell(told)
            if time.monotonic() > ends:
                raise Over

        try:
            run_sweep(sweep, executor, CellRun(sweep, sweep.cells[0]), watch=watch)
        except Over:
            say(f"note: the time allowed {sweep.n_over()} of {len(sweep.cells)} methods; the same command goes on.")
    return sweep


def _show(
    found: Sequence[Candidate], choice: Selection, budget: Budget, device: Profile, options: ChooseOptions
) -> None:
    """The methods by score, and why one is chosen."""
    tasks, chosen, best = options.tasks, choice.chosen, choice.best
    numbers = ("score, %", "texts/min", "interval", "memory, MB", f"{tasks} tasks, kB" if tasks > 1 else "task, kB")
    title = f"{counted(tasks, 'task')} on {device.title}; {_SAID[options.mode]}"
    table = plain_table("method", "", numbers=numbers, title=title)
    for each in sorted(found, key=lambda each: -each.score):
        rate, ends = each.costs.per_minute, each.costs.interval
        misses = budget.misses(each.costs)
        said = "chosen" if each is chosen else f"over: {', '.join(misses)}" if misses else ""
        said = said or ("front" if each.method in choice.front else "")
        shown = "-" if rate is None else f"{rate:,.0f}", "-" if ends is None else f"{ends[0]:,.0f} to {ends[1]:,.0f}"
        sizes = f"{each.costs.memory / 1e6:,.0f}", f"{each.costs.disk / 1e3:,.0f}"
        table.add_row(each.method, said, f"{100 * each.score:.2f}", *shown, *sizes)
    table_console().print(table)
    shares = chosen.costs.shared_layers
    once = f", and {shares} layers run once for all {tasks} tasks" if tasks > 1 and shares else ""
    if chosen is best:
        say(f"{chosen.method}: the best score ({100 * best.score:.2f} %), and none that is as good costs less{once}.")
        return
    beyond = "their answers were not kept, so that chance cannot be judged"
    if choice.p is not None:
        tested = sum(arm.cards[0].metrics["n_test"] for arm in chosen.arms)
        beyond = f"not worse beyond chance on {tested:,} test rows (bootstrap: {choice.p:.2f} of resamples)"
    say(
        f"{chosen.method}: {100 * chosen.score:.2f} % where {best.method} has {100 * best.score:.2f} %, {beyond}, "
        f"and it costs less{once}."
    )


def _export(sweep: Sweep, choice: Selection) -> str:
    """The command that exports the chosen method's run of each data set, of its seeds the best by evaluation rows."""
    from edgepeft.bundle.card import TENSORS_FILE

    folders, trained = [], []
    for arm in choice.chosen.arms:
        score = {cell.name: card.metrics["eval"] for cell, card in zip(arm.cells, arm.cards, strict=True)}
        best = max(arm.cells, key=lambda cell: score[cell.name])
        folder = sweep.run(best)
        folders.append(f"--delta {folder}")
        trained += [] if (folder / TENSORS_FILE).is_file() else [best.data]
    backbone = sweep.options(choice.chosen.arms[0].cells[0])["backbone"]
    note = f" (the sweep kept the cards of {', '.join(trained)} alone: train these anew first)" if trained else ""
    return f"edgepeft export --backbone {backbone} {' '.join(folders)} --out BUNDLE{note}"

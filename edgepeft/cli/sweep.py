"""Train a plan's grid: methods, rates, data sets, sizes and seeds. What is done is never computed again."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from edgepeft.cli._options import command_of
from edgepeft.cli._output import INTERRUPTED, print_json, show_table
from edgepeft.cli._scores import local_runs, showing_runs
from edgepeft.common.errors import EdgepeftError, requiring
from edgepeft.common.messages import counted, first_of
from edgepeft.common.progress import about, bars, say
from edgepeft.options.verbs import SweepOptions

if TYPE_CHECKING:
    from edgepeft.sweep.folder import Sweep

PANEL = "Train"

_REST = "the same command goes on with the rest"


@command_of(SweepOptions, "sweep")
def command(
    options: SweepOptions,
    as_json: Annotated[bool, Option("--json", help="Print the table as one JSON document.")] = False,
) -> None:
    from edgepeft.sweep.plan import read_plan

    asked = read_plan(options.plan)
    say(f"{options.plan}: {asked.description}; backbones, rows and what is done are looked at first")
    with requiring("train", "a sweep"):  # which takes seconds
        from edgepeft.sweep.local import CellRun
        from edgepeft.sweep.run import fold, require_halvable, run_sweep, sweep_of

    with bars() as shown:
        bar = shown.add_task("checking the plan's runs", total=None)
        sweep = sweep_of(asked, options.out, lambda n, total: shown.update(bar, completed=n, total=total))
    if options.halve:
        require_halvable(sweep)
    if options.dry_run:
        _list(sweep, local_runs(sweep, options.workers, options.threads)[1])
        return
    try:
        with ExitStack() as held:
            if threading.current_thread() is threading.main_thread():
                # A shell has its jobs in the background ignore Ctrl-C.
                held.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
            if options.ray is None:
                executor, at_once = local_runs(sweep, options.workers, options.threads)
            else:
                from edgepeft.sweep.cluster import Cluster

                cluster = Cluster(options.ray)
                held.callback(cluster.close)
                executor, at_once = cluster.run, max(1, cluster.cores() // options.threads)
            tell = held.enter_context(showing_runs(sweep, at_once))
            like = CellRun(sweep, sweep.cells[0], threads=options.threads, keep_tensors=options.keep == "deltas")
            failed = run_sweep(sweep, executor, like, halve=options.halve, watch=tell)
    except KeyboardInterrupt:
        say(f"stopped with {sweep.n_over()} of {len(sweep.cells)} runs over; {_REST}.")
        if options.keep == "results":
            fold(sweep)
        raise typer.Exit(INTERRUPTED) from None
    if options.keep == "results":
        sweep = fold(sweep)
    _show(sweep, as_json=as_json)
    if failed:
        raise EdgepeftError(
            f"{counted(len(failed), 'run')} could not be computed: {next(iter(failed.values()))} For these, {_REST}."
        )


def _list(sweep: Sweep, at_once: int) -> None:
    """Every run with its state, how many there are of each, and how long the open ones may take."""
    from edgepeft.sweep.run import estimate

    states, numbers = [sweep.state(cell) for cell in sweep.cells], ("rate", "rows", "steps", "seed")
    rows = (
        (x.name, x.data, x.method, x.backbone, state, f"{x.rate:g}", f"{x.rows:,}", f"{x.steps:,}", str(x.seed))
        for x, state in zip(sweep.cells, states, strict=True)
    )
    show_table("run", "data", "method", "backbone", "state", rows=rows, numbers=numbers)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    seconds = estimate(sweep, at_once)
    left = about(seconds) or "no run is done that would say how long the open ones take"
    say(f"{counted(len(states), 'run')}: {counts}; {at_once} at once; {left}.")


def _show(sweep: Sweep, *, as_json: bool) -> None:
    from edgepeft.sweep.table import columns, document, entries, grouped

    if as_json:
        print_json(document(sweep))
        return
    for (backbone, size), group in grouped(columns(sweep)).items():
        header, rows = entries(group)
        title = f"{backbone}, {size if size.endswith('%') else f'{size} rows'}"
        cells = (["-" if x is None else x if isinstance(x, str) else f"{x:,}" for x in row] for row in rows)
        show_table(header[0], rows=cells, title=title, numbers=header[1:])
    dropped = [cell for cell in sweep.cells if sweep.state(cell) == "dropped"]
    if dropped:
        taken = sum(found.steps if (found := sweep.outcome(cell)) else 0 for cell in dropped)
        whole = sum(cell.steps for cell in sweep.cells)
        spared = sum(cell.steps for cell in dropped) - taken
        trained = f"{whole - spared:,} steps were trained where the full grid has {whole:,}"
        say(f"dropped: {first_of([*map(str, dropped)], between='; ')}. {trained}.")
    say(
        f"* worse than the column's best beyond chance (paired bootstrap over test rows). Pictures: edgepeft report "
        f"{sweep.folder} --out FOLDER"
    )

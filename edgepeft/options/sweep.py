"""The options of ``edgepeft sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from edgepeft.options.base import Count, Options, at_least

__all__ = ["SweepOptions"]


class SweepOptions(Options):
    """A plan, the sweep's folder, and how its runs are computed and kept."""

    plan: Annotated[Path, typer.Argument(help="A plan in TOML; docs/sweeps.md shows one.", metavar="PLAN.toml")]
    out: Annotated[Path, typer.Option(help="The sweep's folder; one that is there goes on.")]
    workers: Annotated[Count, typer.Option(help="Runs at once. Default: one a GPU, or what --threads allows.")] = None
    threads: Annotated[int, at_least(1), typer.Option(help="Of each run; results are equal to the bit with one.")] = 1
    halve: Annotated[
        bool, typer.Option("--halve", help="Drop the worse half of a method's rates after 1/4 and 1/2 of the steps.")
    ] = False
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A cluster of Ray that computes the runs, or auto.")
    ] = None
    keep: Annotated[
        Literal["deltas", "cards", "results"],
        typer.Option(help="What stays of a run: its delta, its card and answers, or a line of results.jsonl."),
    ] = "deltas"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and compute none.")] = False

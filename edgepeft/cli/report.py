"""Write one self-contained HTML page, and markdown with its pictures."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edgepeft.common.progress import say

PANEL = "Measure"


def command(
    results: Annotated[
        list[Path],
        Argument(
            help="Results of bench, its suites, quickstart and eval, and folders of trained deltas and of sweeps.",
            metavar="RESULT.json|DELTA|SWEEP...",
        ),
    ],
    *,
    out: Annotated[Path, Option(help="The folder to write: index.html, report.md, pictures/.")],
    force: Annotated[bool, Option("--force", help="Replace the folder.")] = False,
) -> None:
    from edgepeft.bench.report.build import build_report

    made = build_report(results, out, force=force)
    say(f"{len(made)} sections in {out / 'index.html'} and {out / 'report.md'}")

"""``python -m bench.suites SUITE --profile PROFILE``: what edgepeft claims, measured beside its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.suites import suite_names
from bench.suites._result import SuiteRequest, SuiteResult, run_suite
from bench.suites._table import check_picture, draw_suite, suite_table
from edgepeft.cli._main import main
from edgepeft.cli._output import result_file, show_result
from edgepeft.cli._progress import shown_steps
from edgepeft.resources import write_json

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure_suite(
    suite: Annotated[str, typer.Argument(help=f"What is measured: {', '.join(suite_names())}.")],
    *,
    profile: Annotated[str, typer.Option(help="The device whose cores and memory are in force.")],
    backbone: Annotated[
        str | None, typer.Option(help="A named architecture, with random weights. Default: roberta-base.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Of each comparison. Default: 30.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Begin no new round of a comparison after this time. Default: 600.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of token ids, weights and the order within rounds.")] = 0,
    json: Annotated[
        str | None, typer.Option(help="Write the result there after every row; - is standard output.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures there (.png or .svg).")] = None,
) -> None:
    """Measure a set of claims on random weights, each beside its target and the tools that people use instead."""
    file = result_file(json)
    if plot is not None:
        check_picture(plot)

    def keep(result: SuiteResult) -> None:
        if file is not None:
            write_json(file, result.to_json())

    with shown_steps() as progress:
        request = SuiteRequest(suite, profile, backbone, rounds, max_seconds, seed)
        result = run_suite(request, progress=progress, keep=keep)
    show_result(result, json, suite_table)
    if plot is not None:
        draw_suite(result, plot)


if __name__ == "__main__":
    main(app)

"""``python -m bench.suites SUITE --profile PROFILE``: what edgepeft claims, measured beside its peers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.peers import PEERS
from bench.suites import suite_names
from bench.suites._result import SuiteRequest, SuiteResult, run_suite
from bench.suites._table import check_picture, draw_suite, suite_table
from edgepeft.cli._main import main
from edgepeft.cli._output import result_file, show_result
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import UsageError
from edgepeft.common.progress import shown_steps

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure_suite(
    suite: Annotated[str, typer.Argument(help=f"What is measured: {', '.join(suite_names())}.")],
    *,
    profile: Annotated[str, typer.Option(help="The device whose cores and memory are in force.")],
    backbone: Annotated[
        str | None,
        typer.Option(
            help="A named architecture, with random weights, or a folder with a checkpoint. Default: roberta-base."
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Of each comparison. Default: 30.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Begin no new round of a comparison after this time. Default: 600.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Of a suite that has cases, these only; may be repeated.")
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(help="PEER=INTERPRETER: the environment that a peer is installed in; may be repeated."),
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Keep bundles and peers there for the next run. Default: a temporary folder.")
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
        request = SuiteRequest(
            suite, profile, backbone, rounds, max_seconds, seed, tuple(case or ()), _pythons(python or []), work
        )
        result = run_suite(request, progress=progress, keep=keep)
    show_result(result, json, suite_table)
    if plot is not None:
        draw_suite(result, plot)


def _pythons(given: Sequence[str]) -> dict[str, str]:
    """Interpreters by the peers that they have."""
    pairs = [each.partition("=")[::2] for each in given]
    for peer, python in pairs:
        if peer not in PEERS or not python:
            raise UsageError(
                f"--python takes PEER=INTERPRETER, with a peer of {', '.join(PEERS)}; got {peer}={python}."
            )
        if shutil.which(python) is None:
            raise UsageError(f"--python {peer}={python}: there is no such interpreter; make an environment first.")
    return dict(pairs)


if __name__ == "__main__":
    main(app)

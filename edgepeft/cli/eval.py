"""``edgepeft eval``: the metric of the deployed artefact, without torch."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepeft.cli._options import command_of
from edgepeft.cli._output import print_json, say_cuts, show_errors
from edgepeft.options.eval import EvalOptions

__all__ = ["command"]

PANEL = "Train"


def _eval(
    options: EvalOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score a task of the bundle on labelled data, and show its errors by class and the worst rows."""
    from edgepeft.runtime.evaluate import evaluate

    result = evaluate(options)
    found = result.found
    if as_json:
        print_json({"schema": "edgepeft.eval/1", "bundle": str(options.bundle), "task": options.task, **found})
    else:
        typer.echo(f"{result.task}: {result.metric} {result.score:.4f} on {result.rows} rows ({found['averaged']})")
        for name, part in found.get("parts", {}).items():
            typer.echo(f"  {name}: {part['score']:.4f} on {part['rows']} rows")
        if asked_of := found.get("questions"):
            typer.echo(f"  exact match {asked_of['exact_match']:.4f} on {asked_of['questions']} questions")
        show_errors(found)
    say_cuts(result.truncation, result.max_new_tokens)


command = command_of(EvalOptions, _eval, "eval")

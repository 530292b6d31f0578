"""Score a task of the bundle on labelled data, and show its errors by class and the worst rows."""

from typing import Annotated

import typer
from typer import Option

from edgepeft.cli._options import command_of, say_cuts
from edgepeft.cli._output import print_json
from edgepeft.cli._scores import show_errors, show_headline
from edgepeft.common.messages import counted
from edgepeft.data.by_class import metric_title, score_text
from edgepeft.options.verbs import EvalOptions

PANEL = "Train"


@command_of(EvalOptions, "eval")
def command(
    options: EvalOptions, as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False
) -> None:
    from edgepeft.runtime.evaluate import evaluate

    result = evaluate(options)
    found = result.found
    if as_json:
        print_json({"schema": "edgepeft.eval/1", "bundle": str(options.bundle), "task": options.task, **found})
        say_cuts(result.truncation, result.max_new_tokens)
        return
    typer.echo(
        f"{result.task}: {metric_title(result.metric)} {score_text(result.score)} on {counted(result.rows, 'row')}"
    )
    show_headline(result.headline, found["baselines"])
    for name, part in found.get("parts", {}).items():
        typer.echo(f"  {name}: {score_text(part['score'])} on {counted(part['rows'], 'row')}")
    if asked_of := found.get("questions"):
        typer.echo(
            f"  exact match {score_text(asked_of['exact_match'])} on {counted(asked_of['questions'], 'question')}"
        )
    if own := found.get("trained"):
        beside = "".join(f", {name} {score_text(score)}" for name, score in own["baselines"].items())
        told = f"{metric_title(own['metric'])} {score_text(own['score'])}{beside}"
        typer.echo(f"When trained, on {counted(own['rows'], 'row')}: {told}.")
    show_errors(found, None if options.out is None else str(options.out))
    say_cuts(result.truncation, result.max_new_tokens)

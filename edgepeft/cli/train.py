"""Train a task's delta. Rows that train or choose a checkpoint do not report: a --test within them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from edgepeft.backbones.base import LINEAR_ROLES, family_of
from edgepeft.backbones.config import config_of
from edgepeft.cli import _scores
from edgepeft.cli._options import command_of
from edgepeft.cli._output import plain_table, print_json, show_table, table_console
from edgepeft.common.errors import requiring
from edgepeft.common.messages import counted
from edgepeft.common.progress import say
from edgepeft.data.by_class import metric_title, score_text
from edgepeft.options.verbs import METHOD, TrainOptions

if TYPE_CHECKING:
    from edgepeft.training.loop import TrainResult

PANEL = "Train"
_ENCODER = "all-MiniLM-L6-v2"


@command_of(TrainOptions, "train")
def command(
    options: TrainOptions,
    as_json: Annotated[bool, Option("--json", help="Print the delta's card as one JSON document.")] = False,
) -> None:
    with requiring("train", "training"):
        from edgepeft.training.loop import run

    if options.method is None:
        say(f"note: trains {METHOD}, for no --method was given; `edgepeft methods` lists the others.")
    with _scores.interruptible():
        result = run(options)
    if result.truncated:
        n, longest = result.truncated, result.delta.card.max_length
        lost, remedy = "end", "--max-length, or --long windows"
        if result.delta.architecture.decoder_only:
            lost, remedy = "beginning", "--max-length"
        lost = f"its {lost}" if n == 1 else f"their {lost}s"
        say(f"note: {counted(n, 'text was')} longer than {longest} tokens and lost {lost} ({remedy}).")
    if result.cut:
        most = result.delta.card.max_target_length
        say(f"note: {counted(result.cut, 'target was')} longer than {most} tokens (--max-target-length).")
    if result.delta.architecture.decoder_only and not result.delta.card.task_kind.writes:
        config, own = config_of(_ENCODER), result.delta.architecture
        taken, encoder = (
            sum(site.in_features * site.out_features for site in each.sites_of(*LINEAR_ROLES))
            for each in (own, family_of(config).architecture(config))
        )
        say(
            f"note: the layers of {result.delta.card.backbone.source} take {taken:,} multiply-adds a token, those of "
            f"the encoder {_ENCODER} {encoder:,}; docs/decoders.md has what labels gain by that."
        )
    _scores.say_notes(result, "another --method")
    if as_json:
        print_json(result.delta.card.model_dump(mode="json"))
    else:
        _show(result, Path(options.out))


def _show(result: TrainResult, out: Path) -> None:
    card, training = result.delta.card, result.training
    typer.echo(f"{card.task}: {card.method} on {card.backbone.source}, {result.metrics['n_test']:,} test rows")
    _scores.show_headline(result.metrics["headline"], result.metrics["baselines"])
    weights = training.get("class_weights") or {}
    weighed = ", ".join(f"{label} (weighs {weight:.3g})" for label, weight in weights.items())
    counts = result.delta.n_parameters()
    after = f"after step {training['best_step']} of {training['steps']}"
    facts = {
        "eval rows": f"{metric_title(result.metric)} {score_text(result.metrics['eval'])} {after}",
        "rows": result.metrics["split"],
        "labels": weighed or card.task_kind.listed,
        "trained parameters": f"{counts['delta']:,} and {counts['head']:,} of the head",
        "computed on": f"{training['device']}, {training['precision']}",
        "written": str(out),
    }
    table_console(_scores.SCORES_WIDTH).print(plain_table("run", "", rows=facts.items()))
    _scores.show_errors(result.errors, str(out))
    if "curve" in result.metrics:
        points = result.metrics["curve"]
        names = list(points[-1]["baselines"])
        scores = ([x["test"], x["eval"], *(x["baselines"].get(name) for name in names)] for x in points)
        rows = ((f"{x['rows']:,}", *map(score_text, each)) for x, each in zip(points, scores, strict=True))
        show_table(rows=rows, numbers=("training rows", f"{result.metrics['metric']}, test rows", "eval rows", *names))
        say(f"drawn in {out / 'curve.svg'} and {out / 'curve.png'}")

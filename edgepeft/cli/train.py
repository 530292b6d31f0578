"""``edgepeft train``: a delta from labelled text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepeft.cli._output import messages, print_json, table_console
from edgepeft.cli._run import progress_bar, stopping
from edgepeft.cli._settings import SETTINGS_HELP, settings_of
from edgepeft.errors import MissingPackage

if TYPE_CHECKING:
    from rich.table import Table

    from edgepeft.training.loop import TrainResult

__all__ = ["command"]


def command(
    *,
    backbone: Annotated[str, typer.Option(help="A folder in Hugging Face layout, a bundle, or a Hub name.")],
    data: Annotated[Path, typer.Option(help="Rows to train on: jsonl, csv or tsv of sentence1, [sentence2,] label.")],
    eval_: Annotated[
        Path | None, typer.Option("--eval", help="Rows that choose the checkpoint. Default: 10 %.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Rows whose score is reported. Default: another 10 %.")] = None,
    task: Annotated[str, typer.Option(help="The task's name.")],
    method: Annotated[str, typer.Option(help="A PE method; `edgepeft methods` lists them.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help=SETTINGS_HELP, metavar="NAME=VALUE")] = None,
    few_shot: Annotated[int | None, typer.Option(help="Train on N rows in all, stratified.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows. Default: 3.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of --epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the delta. Default: the method's.")] = None,
    head_lr: Annotated[
        float | None, typer.Option(help="That of the head. Default: 0.02 on a mean of tokens, else as --lr.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens kept of a text or pair. Default: 128.")] = None,
    regression: Annotated[bool, typer.Option("--regression", help="Labels are numbers to predict.")] = False,
    metric: Annotated[
        str | None, typer.Option(help="accuracy, f1, f1:LABEL, matthews; pearson, spearman, pearson_spearman.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the initial values, the order, the dropout, the few shots.")] = 0,
    head: Annotated[str | None, typer.Option(help="Kind of head. Default: the backbone's own.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: the cores in force.")] = None,
    out: Annotated[Path, typer.Option(help="The delta's folder, new.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a delta or an interrupted run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the delta's card as one JSON document.")] = False,
) -> None:
    """Train a task's delta. Rows that train or choose a checkpoint do not report: a --test within them is refused."""
    from edgepeft.host.wheels import refuse_bad_wheels

    refuse_bad_wheels("torch")
    try:
        import torch

        from edgepeft.data.parts import load_data
        from edgepeft.training.loop import Interrupted, train
        from edgepeft.training.options import TrainOptions
        from edgepeft.training.output import prepare_output
    except ImportError as error:
        raise MissingPackage(f"training needs {error.name}: pip install 'edgepeft[train]'.") from error
    from edgepeft.backbones.source import open_backbone
    from edgepeft.host.cores import thread_count
    from edgepeft.methods.base import method_named

    options = TrainOptions(
        task=task,
        epochs=epochs,
        steps=steps,
        learning_rate=lr,
        head_learning_rate=head_lr,
        batch_size=batch_size,
        max_length=max_length,
        regression=regression,
        metric=metric,
        seed=seed,
        head=head,
    )
    prepare_output(out, resume=resume, force=force)  # what is wrong with it is said before files are read
    chosen = method_named(method).from_settings(settings_of(set_ or []))
    opened = open_backbone(backbone)
    rows = load_data(data, eval_, test, regression=regression, few_shot=few_shot, seed=seed)
    torch.set_num_threads(threads or thread_count())
    try:
        with progress_bar(options.task) as watch, stopping() as stop:
            result = train(opened, chosen, rows, options, out, resume=resume, force=force, watch=watch, stop=stop)
    except Interrupted as interrupted:
        messages().print(f"{interrupted}. The same command with --resume (without --force) continues.")
        raise typer.Exit(130) from None
    _show(result, out, as_json)


def _show(result: TrainResult, out: Path, as_json: bool) -> None:
    if result.truncated:
        longest = result.delta.card.max_length
        messages().print(
            f"note: {result.truncated} texts were longer than {longest} tokens and lost their ends (--max-length)."
        )
    if as_json:
        print_json(result.delta.card.model_dump(mode="json"))
    else:
        table_console().print(_table(result, out))


def _table(result: TrainResult, out: Path) -> Table:
    from rich.table import Table

    card = result.delta.card
    counts = result.delta.n_parameters()
    table = Table(title=f"{card.task}: {card.method} on {card.backbone.source}", show_header=False)
    rows = {
        f"{result.metric}, test rows": f"{result.test_score:.4f}",
        f"{result.metric}, eval rows": f"{result.eval_score:.4f} after step {result.best_step} of {result.steps}",
        "rows": result.split,
        "labels": "numbers" if card.labels is None else ", ".join(card.labels),
        "trained parameters": f"{counts['delta']:,} and {counts['head']:,} of the head",
        "written": str(out),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table

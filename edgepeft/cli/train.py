"""``edgepeft train``: a delta from labelled text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgepeft.cli._options import (
    Balanced,
    Epochs,
    EvalRows,
    FewShot,
    FieldColumns,
    FormatName,
    LabelColumn,
    LabelSeparator,
    MethodSettings,
    MetricName,
    PairColumn,
    Patience,
    SourcePattern,
    Steps,
    TargetPattern,
    TaskKind,
    TestRows,
    TextColumn,
    TorchThreads,
    TrainRows,
    rows_or_share,
    settings_of,
)
from edgepeft.cli._output import messages, plain_table, print_json, show_errors, table_console
from edgepeft.cli._run import interruptible, say_temperature, say_unbeaten, say_windows, use_threads
from edgepeft.common.errors import requiring

if TYPE_CHECKING:
    from rich.table import Table

    from edgepeft.training.loop import TrainResult

__all__ = ["command", "document", "run"]

PANEL = "Train"


def command(
    *,
    backbone: Annotated[str, typer.Option(help="A folder in Hugging Face layout, a bundle, or a Hub name.")],
    data: TrainRows,
    eval: EvalRows = None,
    test: TestRows = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    format: FormatName = None,
    source: SourcePattern = None,
    target: TargetPattern = None,
    field: FieldColumns = None,
    kind: TaskKind = None,
    task: Annotated[str, typer.Option(help="The task's name.")],
    method: Annotated[
        str | None, typer.Option(help="A PE method; `edgepeft methods` lists them. Default: lora.")
    ] = None,
    set: MethodSettings = None,
    few_shot: FewShot = None,
    epochs: Epochs = None,
    steps: Steps = None,
    patience: Patience = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the delta. Default: the method's.")] = None,
    head_lr: Annotated[
        float | None, typer.Option(help="That of the head. Default: 0.02 on a mean of tokens, else as --lr.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens kept of a text or pair. Default: 128.")] = None,
    long: Annotated[
        Literal["cut", "windows"] | None,
        typer.Option(help="Longer texts lose their ends, or are read in windows that overlap. Default: cut."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens that two windows share. Default: a third of --max-length.")
    ] = None,
    max_target_length: Annotated[
        int | None, typer.Option(help="Tokens of a text that is written, its end included. Default: 128.")
    ] = None,
    regression: Annotated[bool, typer.Option("--regression", help="Short for --kind regression.")] = False,
    balanced: Balanced = False,
    metric: MetricName = None,
    seed: Annotated[int, typer.Option(help="Of the initial values, the order, the dropout, the few shots.")] = 0,
    head: Annotated[str | None, typer.Option(help="TaskType of head. Default: the backbone's own.")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Train on 10, 20, 40 and 70 % of the rows too.")] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute; auto: a GPU where there is one.")
    ] = "auto",
    bf16: Annotated[bool, typer.Option("--bf16", help="A step's forward in bfloat16; what is trained is not.")] = False,
    threads: TorchThreads = None,
    out: Annotated[Path, typer.Option(help="The delta's folder, new.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a delta or an interrupted run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the delta's card as one JSON document.")] = False,
) -> None:
    """Train a task's delta. Rows that train or choose a checkpoint do not report: a --test within them is refused."""
    options = {**locals()}
    result = run(options)
    if as_json:
        print_json(document(result))
    else:
        _show(result, out)


def run(options: Mapping[str, Any]) -> TrainResult:
    """Train as the command's options say, with progress and notes on standard error."""
    with requiring("train", "training"):
        from edgepeft.training.loop import prepare_output, train
        from edgepeft.training.request import METHOD, Request

    given = {name: options[name] for name in Request.model_fields}
    given["set"] = settings_of(options["set"])
    given["field"] = settings_of(options["field"], "--field", "premise=sentence1")
    given |= {name: rows_or_share(f"--{name}", options[name]) for name in ("eval", "test")}
    request = Request.model_validate(given | {"method": options["method"] or METHOD})
    resolved = request.resolved()
    out, again = options["out"], {name: options[name] for name in ("resume", "force")}
    prepare_output(out, **again)  # what is wrong with it is reported before files are read
    rows = resolved.rows()
    if options["method"] is None:
        messages().print(f"note: trains {METHOD}, for no --method was given; `edgepeft methods` lists the others.")
    use_threads(options["threads"])
    with interruptible(request.task) as (watch, stop):
        result = train(request.backbone, resolved.method, rows, resolved.options, out, **again, watch=watch, stop=stop)
    _say_what_to_know(result)
    return result


def document(result: TrainResult) -> dict[str, Any]:
    """The delta's card as plain values, as its folder has it."""
    return result.delta.card.model_dump(mode="json")


def _say_what_to_know(result: TrainResult) -> None:
    if result.truncated:
        longest = result.delta.card.max_length
        messages().print(
            f"note: {result.truncated} texts were longer than {longest} tokens and lost their ends (--max-length, "
            "or --long windows)."
        )
    if result.cut:
        most = result.delta.card.max_target_length
        messages().print(f"note: {result.cut} targets were longer than {most} tokens (--max-target-length).")
    say_windows(result)
    say_temperature(result)
    say_unbeaten(result, "another --method")


def _show(result: TrainResult, out: Path) -> None:
    table_console().print(_table(result, out))
    show_errors(result.errors)
    if "curve" in result.metrics:
        table_console().print(_curve(result.metrics))
        messages().print(f"drawn in {out / 'curve.svg'} and {out / 'curve.png'}", markup=False)


def _table(result: TrainResult, out: Path) -> Table:
    from rich.table import Table

    card, training = result.delta.card, result.training
    kind, weights = card.task_kind, training.get("class_weights")
    how = kind.averaged(result.metric)
    counts = result.delta.n_parameters()
    after = f"after step {training['best_step']} of {training['steps']}"
    table = Table(title=f"{card.task}: {card.method} on {card.backbone.source}", show_header=False)
    rows = {
        f"{result.metric}, test rows": f"{result.test_score:.4f} ({how})",
        **{f"of the {name}": f"{each['test']:.4f}" for name, each in result.metrics["baselines"].items()},
        f"{result.metric}, eval rows": f"{result.metrics['eval']:.4f} {after}",
        "rows": result.metrics["split"],
        "labels": _weighed(weights) if weights else kind.listed,
        "trained parameters": f"{counts['delta']:,} and {counts['head']:,} of the head",
        "computed on": f"{training['device']}, {training['precision']}",
        "written": str(out),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _weighed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{label} (weighs {weight:.3g})" for label, weight in weights.items())


def _curve(metrics: Mapping[str, Any]) -> Table:
    """A row for each size; a dash where a run diverged at once."""
    points = metrics["curve"]
    names = list(points[-1]["baselines"])
    table = plain_table(numbers=("training rows", f"{metrics['metric']}, test rows", "eval rows", *names))
    for point in points:
        scores = [point["test"], point["eval"], *(point["baselines"].get(name) for name in names)]
        table.add_row(f"{point['rows']:,}", *("-" if score is None else f"{score:.4f}" for score in scores))
    return table

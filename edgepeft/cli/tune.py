"""``edgepeft tune``: fine-tuning on the board, ONNX Runtime alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgepeft.cli._options import (
    Balanced,
    BundleFolder,
    Coverage,
    Epochs,
    EvalRows,
    FewShot,
    LabelColumn,
    LabelSeparator,
    MetricName,
    PairColumn,
    Patience,
    Risk,
    Steps,
    TaskKind,
    TestRows,
    TextColumn,
    Threads,
    TrainRows,
    rows_or_share,
)
from edgepeft.cli._output import messages, print_json
from edgepeft.cli._run import interruptible, say_temperature, say_unbeaten, say_windows
from edgepeft.data.rows import Columns

if TYPE_CHECKING:
    from edgepeft.tuning.tune import TuneResult

__all__ = ["command"]

PANEL = "Train"

_PrefixCache = Annotated[
    bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Compute what lies below the trained modules once.")
]
_Backward = Annotated[Literal["int8", "fp32"], typer.Option(help="How gradients pass a backbone's 8-bit weights.")]


def command(
    *,
    bundle: BundleFolder,
    task: Annotated[str, typer.Option(help="The task to go on with; with --template, the new task's name.")],
    data: TrainRows,
    template: Annotated[str | None, typer.Option(help="Start a new task from this template of the bundle.")] = None,
    kind: TaskKind = None,
    eval_: EvalRows = None,
    test: TestRows = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    few_shot: FewShot = None,
    balanced: Balanced = False,
    epochs: Epochs = None,
    steps: Steps = None,
    patience: Patience = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the delta. Default: as it was trained.")] = None,
    head_lr: Annotated[float | None, typer.Option(help="That of the head. Default: as it was trained.")] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's, of every trained tensor.")] = 0.0,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step. Default: 16, or all if fewer.")] = None,
    dropout: Annotated[bool, typer.Option("--dropout/--no-dropout", help="The head's, as it was exported.")] = True,
    metric: MetricName = None,
    coverage: Coverage = None,
    risk: Risk = None,
    seed: Annotated[int, typer.Option(help="Of a new head, the order, the dropout, the few shots.")] = 0,
    micro_batch: Annotated[int | None, typer.Option(help="Rows computed at once. Default: what memory allows.")] = None,
    prefix_cache: _PrefixCache = True,
    backward: _Backward = "int8",
    profile: Annotated[str | None, typer.Option(help="A device whose memory the run must fit.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory the run must fit, such as 800MB or 1.5GiB.")] = None,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 20,
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of the task.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start anew in place of an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Fine-tune a task on this machine and put the result in force; neither torch nor transformers is loaded.

    The task keeps its previous version: `edgepeft rollback`. Where no step beats what is there, nothing changes.
    """
    from edgepeft.tuning.target import Files, TuneOptions
    from edgepeft.tuning.tune import tune

    rates: dict[str, Any] = {"learning_rate": lr, "head_learning_rate": head_lr, "weight_decay": weight_decay}
    length: dict[str, Any] = {"epochs": epochs, "steps": steps, "patience": patience, "save_every": save_every}
    room: dict[str, Any] = {"micro_batch": micro_batch, "profile": profile, "memory": memory}
    options = TuneOptions(
        **rates,
        **length,
        batch_size=batch_size,
        metric=metric,
        coverage=coverage,
        risk=risk,
        seed=seed,
        few_shot=few_shot,
        balanced=balanced,
        dropout=dropout,
        prefix_cache=prefix_cache,
        backward=backward,
        **room,
    )
    names = Columns(text_column, pair_column, label_column, separator=label_separator)
    files = Files(data, rows_or_share("--eval", eval_), rows_or_share("--test", test), names)
    run: dict[str, Any] = {"template": template, "kind": kind, "resume": resume, "force": force, "threads": threads}
    with interruptible(task) as (watch, stop):
        result = tune(bundle, task, files, options, **run, watch=watch, stop=stop, note=_note)
    _show(result, bundle, task, as_json)


def _note(line: str) -> None:
    messages().print(f"note: {line}")


def _show(result: TuneResult, bundle: Path, task: str, as_json: bool) -> None:
    from edgepeft.bundle.manifest import stated_score

    tuned, entry = result.tuned, result.entry
    if tuned.truncated:
        messages().print(
            f"note: {tuned.truncated} texts were longer than the task's maximal length and lost their ends."
        )
    say_windows(tuned)
    say_temperature(tuned)
    say_unbeaten(tuned, "another --template")
    if as_json:
        kept = None if entry is None else entry.model_dump(mode="json")
        print_json(
            {
                "bundle": str(bundle),
                "task": task,
                "replaced": entry is not None,
                "metrics": tuned.metrics,
                "errors": tuned.errors,
                "training": tuned.training,
                "history": tuned.history,
                "entry": kept,
            }
        )
        return
    metrics, training = tuned.metrics, tuned.training
    typer.echo(
        f"{task}: {stated_score(metrics)} on {metrics['n_test']} test rows, {metrics['eval']:.4f} on "
        f"{metrics['n_eval']} eval rows, after step {training['best_step']} of {training['steps']}"
    )
    if entry is None:
        started = training["template"] is not None
        messages().print(
            "no step beat the untrained start; no task was made."
            if started
            else "no step beat what was there; the task is as it was."
        )
    elif entry.previous is not None:
        messages().print(f"in force now; edgepeft rollback {bundle} --task {task} brings the previous version back.")

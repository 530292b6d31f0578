"""``edgepeft tune``: fine-tuning on the board, ONNX Runtime alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from edgepeft.cli._options import command_of
from edgepeft.cli._output import print_json
from edgepeft.cli._scores import interruptible, say_temperature, say_unbeaten, say_windows
from edgepeft.common.progress import say
from edgepeft.data.by_class import rounded
from edgepeft.options.verbs import TuneOptions

if TYPE_CHECKING:
    from edgepeft.tuning.tune import TuneResult

PANEL = "Train"


@command_of(TuneOptions, "tune")
def command(
    options: TuneOptions,
    as_json: Annotated[bool, Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Fine-tune a task on this machine and put the result in force; neither torch nor transformers is loaded.

    The task keeps its previous version: `edgepeft rollback`. Where no step beats what is there, nothing changes.
    """
    from edgepeft.tuning.tune import run

    with interruptible():
        result = run(options)
    _show(result, Path(options.bundle), options.task, as_json)


def _show(result: TuneResult, bundle: Path, task: str, as_json: bool) -> None:
    from edgepeft.bundle.manifest import stated_score

    if result.truncated:
        say(f"note: {result.truncated} texts were longer than the task's maximal length, and were cut.")
    say_windows(result)
    say_temperature(result)
    say_unbeaten(result, "another --template")
    if as_json:
        kept = None if result.entry is None else result.entry.model_dump(mode="json")
        print_json(
            {
                "bundle": str(bundle),
                "task": task,
                "replaced": result.entry is not None,
                "metrics": result.metrics,
                "errors": result.errors,
                "training": result.training,
                "history": result.history,
                "entry": kept,
            }
        )
        return
    entry, metrics, training = result.entry, result.metrics, result.training
    typer.echo(
        f"{task}: {stated_score(metrics)} on {metrics['n_test']} test rows, {rounded(metrics['eval'])} on "
        f"{metrics['n_eval']} eval rows, after step {training['best_step']} of {training['steps']}"
    )
    if entry is None:
        started = training["template"] is not None
        say(
            "no step beat the untrained start; no task was made."
            if started
            else "no step beat what was there; the task is as it was."
        )
    elif entry.previous is not None:
        say(f"in force now; edgepeft rollback {bundle} --task {task} brings the previous version back.")

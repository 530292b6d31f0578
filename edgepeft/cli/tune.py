"""Fine-tune a task on this machine and put the result in force; neither torch nor transformers is loaded.

The task keeps its previous version: `edgepeft rollback`. Where no step beats what is there, nothing changes.
"""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from edgepeft.cli._options import command_of
from edgepeft.cli._output import print_json
from edgepeft.cli._scores import interruptible, say_notes
from edgepeft.common.messages import counted
from edgepeft.common.progress import say
from edgepeft.data.by_class import score_text
from edgepeft.options.verbs import TuneOptions

PANEL = "Train"


@command_of(TuneOptions, "tune")
def command(
    options: TuneOptions,
    as_json: Annotated[bool, Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    from edgepeft.bundle.manifest import stated_score
    from edgepeft.tuning.tune import run

    with interruptible():
        result = run(options)
    bundle, task = Path(options.bundle), options.task
    entry, metrics, training = result.entry, result.metrics, result.training
    if result.truncated:
        say(f"note: {counted(result.truncated, 'text was')} longer than the task's maximal length, and cut.")
    say_notes(result, "another --template")
    if as_json:
        kept = None if entry is None else entry.model_dump(mode="json")
        learnt = {name: getattr(result, name) for name in ("metrics", "errors", "training", "history")}
        print_json({"bundle": str(bundle), "task": task, "replaced": entry is not None, **learnt, "entry": kept})
        return
    typer.echo(
        f"{task}: {stated_score(metrics)} on {metrics['n_test']} test rows, {score_text(metrics['eval'])} on "
        f"{metrics['n_eval']} eval rows, after step {training['best_step']} of {training['steps']}"
    )
    if entry is None:
        new = training["template"] is not None
        unbeaten = "the untrained start; no task was made" if new else "what was there; the task is as it was"
        say(f"no step beat {unbeaten}.")
    elif entry.previous is not None:
        say(f"in force now; edgepeft rollback {bundle} --task {task} brings the previous version back.")

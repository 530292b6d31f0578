"""Write one task as a plain model for optimum, C++, mobile or web; it holds a backbone of its own."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.cli._output import print_json
from edgepeft.common.messages import counted
from edgepeft.common.progress import say, stages
from edgepeft.options.base import AcceptError, Replace

PANEL = "Deploy"


def command(
    bundle: BundleFolder,
    task: Annotated[str, Option(help="The task to merge.")],
    out: Annotated[Path, Option(help="The folder to write.")],
    force: Replace = False,
    accept_error: AcceptError = False,
    as_json: Annotated[bool, Option("--json", help="Print the verification as JSON.")] = False,
) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.deploy.merge import merge_task

    opened = Bundle(bundle)
    with stages(1) as stage, stage(f"merge {task}"):
        result = merge_task(opened, task, out, force=force, accept_error=accept_error)
    if (source := opened.entry(task).source) is not None:
        say(f"note: what is written does not know the task's pattern: give it texts as {source!r} makes them.")
    if opened.entry(task).task_kind.windows:
        say("note: what is written answers for one window; texts that are longer it cuts.")
    if as_json:
        print_json({"task": task, "folder": str(out), "verification": result.model_dump()})
        return
    say(
        f"{task}: {sum(path.stat().st_size for path in out.iterdir()):,} bytes, largest logit difference to PyTorch "
        f"{result.max_abs_difference:.1e} on {counted(result.rows, 'row')}"
    )
    typer.echo(out)

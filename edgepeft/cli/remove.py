"""Remove a task from a bundle; the backbone is untouched."""

from typing import Annotated

from typer import Argument

from edgepeft.cli._options import BundleFolder
from edgepeft.common.progress import say

PANEL = "Deploy"


def command(bundle: BundleFolder, task: Annotated[str, Argument(help="The task to take out.")]) -> None:
    from edgepeft.deploy.install import remove_task

    manifest = remove_task(bundle, task)
    say(f"{bundle} now holds: {', '.join(manifest.tasks) or 'no task'}")

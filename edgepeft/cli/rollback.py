"""Put a task's previous version in force; rolling back again undoes it."""

from typing import Annotated

from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.common.progress import say

PANEL = "Deploy"


def command(
    bundle: BundleFolder, task: Annotated[str, Option(help="The task whose previous version comes back.")]
) -> None:
    from edgepeft.deploy.install import roll_back

    entry = roll_back(bundle, task).task(task)
    say(f"{task}: the version {entry.sha256[:12]} is in force again")

"""Bring a bundle to what is published: verified, replayed on this processor, put in force in one step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from edgepeft.cli._output import json_text
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed, requiring
from edgepeft.common.progress import no_longer, say, stages

if TYPE_CHECKING:
    from edgepeft.fleet.pull import Pulled

PANEL = "Fleet"


def command(
    repository: Annotated[str, Argument(help="The repository's URL or folder.")],
    bundle: Annotated[Path, Argument(help="The bundle's folder; made if new.")],
    channel: Annotated[str, Option(help="Which of the repository's channels.")] = "stable",
    root: Annotated[
        Path | None, Option(metavar="FILE", help="The publisher's 1.root.json, to be trusted from first use on.")
    ] = None,
    from_hub: Annotated[
        bool, Option("--from-hub", help="REPOSITORY is OWNER/NAME or OWNER/NAME@REVISION on the Hugging Face Hub.")
    ] = False,
    every: Annotated[str | None, Option(metavar="TIME", help="Go on, at random moments once in 30m, 1h, 1d.")] = None,
    replace_tuned: Annotated[
        bool, Option("--replace-tuned/--keep-tuned", help="Replace what this board has tuned, or keep it and say so.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print what was done as JSON, a document a line.")] = False,
) -> None:
    with requiring("fleet", "pulling"):
        from edgepeft.fleet.fetcher import hub_address
        from edgepeft.fleet.pull import moments, pull, seconds_of

    address = hub_address(repository) if from_hub else repository

    def once() -> None:
        """Pull, and raise where something that is published was left behind; what stays on purpose was not."""
        with stages(None) as stage:
            done = pull(address, bundle, channel=channel, root=root, replace_tuned=replace_tuned, stage=stage)
        _say(done, bundle, as_json)
        left = "; ".join(f"{task}: {why}" for task, why in {**done.refused, **done.busy}.items())
        if done.refused:
            raise VerificationFailed(left)
        if done.busy:
            raise EdgepeftError(f"{left}. It is as it was; the next pull takes up what is published.")

    if every is None:
        once()
        return
    period = seconds_of(every)
    no_longer()
    first = True
    for _ in moments(period, lambda wait: say(f"the next pull is in {wait:.0f} s")):
        try:
            once()
        except (EdgepeftError, OSError) as error:  # a service outlives a disk that the system cannot read for a while
            if first and isinstance(error, UsageError):  # the command, not what it met
                raise
            say(f"error: {error}")
        first = False


def _say(done: Pulled, bundle: Path, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        typer.echo(json_text(asdict(done)))
        return
    for what, tasks in (("taken up", done.taken), ("withdrawn", done.removed)):
        if tasks:
            say(f"{what}: {', '.join(tasks)}")
    for task, why in done.kept.items():
        say(f"{task} stays: {why} (--replace-tuned takes what is published)")
    for task, why in done.refused.items():
        say(f"{task} is not taken up: {why}")
    if not (done.taken or done.removed or done.whole):
        say(f"nothing changed in {bundle}")
    say(f"{done.requests} requests, {done.n_bytes:,} bytes")

"""Write a folder for any web server: a page that answers the bundle's tasks, offline after the first visit."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.cli._output import print_json
from edgepeft.common.progress import say, stages
from edgepeft.options.base import Replace

PANEL = "Deploy"


def command(
    bundle: BundleFolder,
    out: Annotated[Path, Option(help="The folder to write.")],
    task: Annotated[list[str] | None, Option(help="A task of the site; may repeat. Default: all.")] = None,
    title: Annotated[str, Option(help="What the page is called.")] = "edgepeft",
    libraries: Annotated[
        Path | None, Option(metavar="NODE_MODULES", help="What `npm ci` made. Default: in the cache, made by npm once.")
    ] = None,
    tunable: Annotated[bool, Option("--tunable", help="Let the page tune classifications by typed examples.")] = False,
    force: Replace = False,
    as_json: Annotated[bool, Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.web.site import write_site

    opened = Bundle(bundle)
    with stages(3 + len(task or opened.manifest.tasks)) as stage:
        how: dict[str, Any] = {"libraries": libraries, "title": title, "tunable": tunable, "force": force}
        site = write_site(opened, out, tasks=task or (), **how, stage=stage)
    for name, reason in site.untunable.items():
        say(f"note: the page does not tune {name}: {reason}.")
    if not site.exact_tokens:
        say(
            "note: the page's tokenizer is @huggingface/tokenizers', which reads some texts otherwise than Python's; "
            "SITE/verify.html compares them."
        )
    if as_json:
        print_json({"folder": str(out), **site._asdict()})
        return
    say(
        f"tasks: {site.tasks}; structures: {site.structures}; {site.n_bytes:,} bytes, {site.weights_bytes:,} of them "
        f"weights and {site.values_bytes:,} the tasks' values"
    )
    typer.echo(out)

"""Show the score after removing the modules of every span of layers, and SPARTAN's parent cells by label."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from edgepeft.cli._output import print_json, table_console
from edgepeft.common.errors import requiring
from edgepeft.common.messages import counted
from edgepeft.common.progress import shown_steps
from edgepeft.options.base import ROWS_HELP, LabelColumn, LabelSeparator, PairColumn, TextColumn, TorchThreads

PANEL = "Look"


def command(
    *,
    delta: Annotated[Path, Argument(help="Folder that `edgepeft train` wrote.")],
    data: Annotated[Path, Option(help=f"Labelled rows, best those that did not train: {ROWS_HELP}.")],
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    out: Annotated[Path, Option(help="The folder for pictures and inspect.json, new.")],
    backbone: Annotated[str | None, Option(help="Folder, GGUF file or Hub name. Default: the delta's.")] = None,
    limit: Annotated[int, Option(min=1, help="At most so many rows, stratified by label.")] = 256,
    metric: Annotated[str | None, Option(help="Default: the one that the delta was trained by.")] = None,
    threads: TorchThreads = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier inspection in --out.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print inspect.json instead of tables.")] = False,
) -> None:
    with requiring("train", "inspecting"):
        from edgepeft.training.inspection.base import inspect_delta

    from edgepeft.backbones.source import open_backbone
    from edgepeft.bundle.card import read_card
    from edgepeft.data.columns import Columns

    opened = open_backbone(backbone or read_card(delta).backbone.source)
    from edgepeft.training.devices import use_threads

    use_threads(threads)
    with shown_steps() as watch:
        columns = Columns(text_column, pair_column, label_column, separator=label_separator)
        asked: dict[str, Any] = {"columns": columns, "metric": metric, "limit": limit, "force": force}
        done = inspect_delta(delta, opened, data, out, **asked, watch=watch)
    document = done.document
    if as_json:
        print_json(document)
        return
    read, pictures = document["data"], [name for name in document["pictures"] if name.endswith(".png")]
    more = "" if read["rows"] == read["of"] else f", of {read['of']} ({read['sample']}; --limit takes more)"
    lines = [f"rows: {read['rows']} of {read['file']}{more}"]
    if n := read["truncated"]:
        lost = "its end" if n == 1 else "their ends"
        lines.append(f"note: {counted(n, 'text was')} longer than {read['max_length']} tokens and lost {lost}.")
    lines += [f"no {name}: {why}" for name, why in document["skipped"].items()]
    lines.append(f"sharing: {document['shareable']['sentence']}")
    lines.append(f"pictures: {', '.join(pictures)}; each also as svg")
    console = table_console()
    for table in done.tables:
        console.print(table)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    typer.echo(out)

"""Turn a checkpoint of PEFT or AdapterHub into a delta; neither library is needed."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from edgepeft.cli._output import print_json, table_console
from edgepeft.common.errors import requiring
from edgepeft.options.base import Replace, TaskKind

PANEL = "Train"


def command(
    folder: Annotated[Path, Argument(help="The checkpoint's folder, as its library saved it.")],
    backbone: Annotated[str, Option(help="What it was trained on: a Hugging Face folder, GGUF file or Hub name.")],
    out: Annotated[Path, Option(help="The delta's folder, for `edgepeft export --delta`.")],
    task: Annotated[str | None, Option(help="The task's name. Default: the folder's.")] = None,
    labels: Annotated[
        str | None, Option(help="The names of labels or tags, in order: a,b,c. Default: a config's, or LABEL_0, ...")
    ] = None,
    kind: TaskKind = None,
    max_length: Annotated[int | None, Option(help="Tokens of a text. Default: what the backbone takes.")] = None,
    force: Replace = False,
    as_json: Annotated[bool, Option("--json", help="Print the delta's card as one JSON document.")] = False,
) -> None:
    with requiring("train", "import"):
        from edgepeft.training.interop.base import ImportRequest, importer_of
    from edgepeft.backbones.source import open_backbone
    from edgepeft.common.task_name import check_task_name

    importer = importer_of(folder)
    name = check_task_name(folder.resolve().name if task is None else task)
    names = None if labels is None else tuple(label.strip() for label in labels.split(","))
    delta = importer.read(folder, open_backbone(backbone), ImportRequest(name, names, max_length, kind))
    delta.save(out, force=force)
    if as_json:
        print_json(delta.card.model_dump(mode="json"))
        return
    counts, card = delta.n_parameters(), delta.card
    made = card.task_kind
    shown = made.listed if made.has_labels else f"a {made.answers}"
    table_console().print(
        f"{card.task}: {card.method} from {importer.library}, answers {shown}; "
        f"{counts['delta']:,} parameters and {counts['head']:,} of the head\n{out}",
        markup=False,
    )

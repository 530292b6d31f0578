"""Count trained and total parameters and bytes for N tasks, of one method or of several. No weight is read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.config import architecture_names, config_of, read_config
from edgepeft.backbones.pooling import Pooling
from edgepeft.cli._output import print_json, show_table
from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.messages import counted
from edgepeft.options.base import SETTINGS_HELP, settings_of

PANEL = "Measure"


def command(
    *,
    backbone: Annotated[str, Option(help="A folder with a config.json, or a named architecture.")],
    method: Annotated[list[str], Option(help="A PE method; `edgepeft methods` lists them. May repeat.")],
    set_: Annotated[
        list[str] | None,
        Option("--set", help=f"{SETTINGS_HELP} With several methods: METHOD.NAME=VALUE.", metavar="NAME=VALUE"),
    ] = None,
    tasks: Annotated[int, Option(min=1, help="How many tasks.")] = 1,
    labels: Annotated[int, Option(min=1, help="Labels of each task; 1 for regression.")] = 2,
    head: Annotated[str | None, Option(help="Kind of head, or none. Default: the backbone's own.")] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    with requiring("train", "counting"):
        from edgepeft.methods.base import count, method_named

    names = tuple(dict.fromkeys(method))
    settings = _settings(set_ or [], names)
    chosen = [method_named(name).from_settings(settings[name]) for name in names]
    architecture, own_head = _architecture(backbone)
    documents = []
    for one in chosen:
        found = count(architecture, one, head or own_head, tasks=tasks, labels=labels)
        documents.append({"backbone": backbone, "method": one.name, "hyperparameters": one.settings(), **found})
    if as_json:
        several = {"backbone": backbone, "tasks": tasks, "labels": labels, "counts": documents}
        print_json(documents[0] if len(documents) == 1 else several)
    else:
        _show(documents)


def _settings(pairs: Iterable[str], methods: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """``["lora.rank=8"]`` -> ``{"lora": {"rank": "8"}}``; with one method its name may be left out."""
    by_method: dict[str, dict[str, str]] = {name: {} for name in methods}
    for key, value in settings_of(pairs).items():
        owner, dot, name = key.partition(".")
        if not dot and len(methods) > 1:
            raise UsageError(
                f"--set {key}={value} does not say which of {len(methods)} methods it is for; "
                f"write for example --set {methods[0]}.{key}={value}."
            )
        owner, name = (owner, name) if dot else (methods[0], key)
        if owner not in by_method:
            raise UsageError(f"--set {key}={value} is for {owner}; the methods to count are {', '.join(methods)}.")
        by_method[owner][name] = value
    return by_method


def _architecture(backbone: str) -> tuple[Architecture, str]:
    from edgepeft.backbones.gguf_file import folder_of_gguf
    from edgepeft.backbones.source import Backbone

    folder = Path(backbone)
    if folder.is_file():
        folder = folder_of_gguf(folder)
    if not folder.is_dir():
        if any(separator in backbone for separator in ("\\", "./")) or backbone.count("/") > 1:
            raise UsageError(f"there is no folder {backbone}; known architectures: {', '.join(architecture_names())}.")
        config = config_of(backbone)
        architecture = family_of(config).architecture(config)
        return architecture, architecture.head
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; a backbone is a folder in Hugging Face layout.")
    opened = Backbone(backbone, folder, read_config(folder / "config.json"))
    mean = opened.architecture.decoder is None and opened.pooling is Pooling.MEAN
    return opened.architecture, "linear" if mean else opened.architecture.head


def _show(documents: list[dict[str, Any]]) -> None:
    """What one method takes; of several a row each: what a task trains, what all tasks take on disk."""
    from edgepeft.methods.base import BYTES

    document = documents[0]
    tasks, labels = counted(document["tasks"], "task"), counted(document["labels"], "label")
    heads = "without a head" if document["head"] == "none" else f"{labels}, head {document['head']}"
    if len(documents) > 1:
        title = f"{tasks} on {document['backbone']} ({document['backbone_parameters']:,} parameters), {heads}"
        headers = ("a task's delta", "% of backbone", f"{tasks}, million", "GB, fp32", "backbones")
        methods = (
            (
                each["method"],
                f"{each['trained_parameters']['delta']:,}",
                f"{each['percent_of_backbone']:.3g}",
                f"{each['total_parameters'] / 1e6:,.2f}",
                f"{each['bytes']['total'] / 1e9:,.3f}",
                f"{each['times_the_backbone']:.2f}x",
            )
            for each in documents
        )
        show_table("method", rows=methods, numbers=headers, title=title, centred=True)
        return
    trained, sizes = document["trained_parameters"], document["bytes"]
    shared = "backbone and " if document["shares_backbone"] else ""
    fine_tuned = f"{document['tasks']:,} fine-tuned model{'s' * (document['tasks'] > 1)}"
    rows = [
        (f"delta, {document['percent_of_backbone']:.3g} % of the backbone", trained["delta"], None),
        ("head", trained["head"], None),
        ("one task", trained["total"], sizes["task"]),
        ("its own backbone tensors while open", sizes["private"] // BYTES, sizes["private"]),
        ("backbone", document["backbone_parameters"], sizes["backbone"]),
        (shared + tasks, document["total_parameters"], sizes["total"]),
        (fine_tuned, document["full_models_parameters"], sizes["full_models"]),
    ]
    cells = (
        (name, f"{count:,}", "" if n_bytes is None else f"{n_bytes / 1e6:,.2f} MB")
        for name, count, n_bytes in rows
        if count or n_bytes != 0  # most methods leave every backbone tensor shared
    )
    title = f"{document['method']} on {document['backbone']}, {heads}"
    show_table("", rows=cells, numbers=("parameters", "size, fp32"), title=title, centred=True)

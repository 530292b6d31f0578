"""``edgepeft count``: what N tasks cost beside N fine-tuned models, from a config alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.cli._output import print_json, table_console
from edgepeft.cli._settings import SETTINGS_HELP, settings_of
from edgepeft.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from edgepeft.backbones.base import Architecture
    from edgepeft.heads.base import Head
    from edgepeft.methods.base import Method

__all__ = ["command"]

_BYTES = 4  # of a float32


def command(
    *,
    backbone: Annotated[str, typer.Option(help="A folder with a config.json, or a named architecture.")],
    method: Annotated[str, typer.Option(help="A PE method; `edgepeft methods` lists them.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help=SETTINGS_HELP, metavar="NAME=VALUE")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 1,
    labels: Annotated[int, typer.Option(min=1, help="Labels of each task; 1 for regression.")] = 2,
    head: Annotated[str | None, typer.Option(help="Kind of head. Default: the backbone's own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Count trained and total parameters and bytes for N tasks. No weight is read."""
    try:
        from edgepeft.heads.base import head_named
        from edgepeft.methods.base import method_named
    except ImportError as error:
        raise MissingPackage(f"counting needs {error.name}: pip install 'edgepeft[train]'.") from error

    chosen = method_named(method).from_settings(settings_of(set_ or []))
    architecture, own_head = _architecture(backbone)
    counts = _counts(architecture, chosen, head_named(head or own_head), tasks, labels)
    document = {"backbone": backbone, "method": chosen.name, "hyperparameters": chosen.settings(), **counts}
    print_json(document) if as_json else _show(document)


def _architecture(backbone: str) -> tuple[Architecture, str]:
    """Sizes and the head that a task on this backbone gets."""
    from edgepeft.backbones.base import Pooling, family_of
    from edgepeft.backbones.config import read_config
    from edgepeft.backbones.named import architecture_names, config_of
    from edgepeft.backbones.source import Backbone

    folder = Path(backbone)
    if not folder.is_dir():
        if any(separator in backbone for separator in ("\\", "./")) or backbone.count("/") > 1:
            raise UsageError(f"there is no folder {backbone}; known architectures: {', '.join(architecture_names())}.")
        config = config_of(backbone)
        architecture = family_of(config).architecture(config)
        return architecture, architecture.head
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; a backbone is a folder in Hugging Face layout.")
    opened = Backbone(backbone, folder, read_config(folder / "config.json"))
    architecture = opened.architecture
    return architecture, "linear" if opened.pooling is Pooling.MEAN else architecture.head


def _counts(architecture: Architecture, method: Method, head: type[Head], tasks: int, labels: int) -> dict[str, Any]:
    frozen = architecture.n_parameters + _size(architecture, head)
    delta, own = method.n_trained(architecture, head.reads), head.n_parameters(architecture, labels)
    private = sum(map(math.prod, method.own_tensors(architecture, head.reads).values()))
    shared, separate = frozen + tasks * (delta + own), tasks * (frozen + own)
    return {
        "tasks": tasks,
        "labels": labels,
        "head": head.kind,
        "backbone_parameters": frozen,
        "trained_parameters": {"delta": delta, "head": own, "total": delta + own},
        "percent_of_backbone": round(100 * delta / frozen, 4),
        "total_parameters": shared,
        "full_models_parameters": separate,
        "bytes": {
            "backbone": _BYTES * frozen,
            "task": _BYTES * (delta + own),
            "private": _BYTES * private,
            "total": _BYTES * shared,
            "full_models": _BYTES * separate,
        },
    }


def _size(architecture: Architecture, head: type[Head]) -> int:
    """Parameters of the pooler, where the head reads it."""
    absent = [name for name in head.reads if name not in {**architecture.tensors, **architecture.pooler}]
    if absent:
        raise UsageError(f"the head {head.kind!r} reads {absent[0]}, which {architecture.model_type} does not have.")
    return sum(math.prod(architecture.shape_of(name)) for name in head.reads if name in architecture.pooler)


def _show(document: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    trained, sizes, tasks = document["trained_parameters"], document["bytes"], document["tasks"]
    title = f"{document['method']} on {document['backbone']}, {document['labels']} labels, head {document['head']}"
    table = Table(
        "", *(Column(name, justify="right") for name in ("parameters", "fp32")), title=Text(title), box=box.SIMPLE_HEAD
    )
    rows = [
        (f"delta, {document['percent_of_backbone']:.3g} % of the backbone", trained["delta"], None),
        ("head", trained["head"], None),
        ("one task", trained["total"], sizes["task"]),
        ("its own backbone tensors while open", sizes["private"] // _BYTES, sizes["private"]),
        ("backbone", document["backbone_parameters"], sizes["backbone"]),
        (f"backbone and {tasks} task{'s' * (tasks > 1)}", document["total_parameters"], sizes["total"]),
        (f"{tasks} fine-tuned model{'s' * (tasks > 1)}", document["full_models_parameters"], sizes["full_models"]),
    ]
    for name, count, n_bytes in rows:
        if count == 0 and n_bytes == 0:
            continue  # most methods leave every backbone tensor shared
        table.add_row(name, f"{count:,}", "" if n_bytes is None else f"{n_bytes / 1e6:,.2f} MB")
    table_console().print(table)

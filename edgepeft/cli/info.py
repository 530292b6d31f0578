"""Show tasks, methods, labels, scores and bytes, and whether a task can be fine-tuned on a board."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Column
from rich.text import Text
from typer import Argument, Option

from edgepeft.cli._output import plain_table, print_json, table_console
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.progress import say

if TYPE_CHECKING:
    from edgepeft.bundle.card import DeltaCard
    from edgepeft.bundle.manifest import TaskEntry

PANEL = "Look"

_FACTS = ("method", "hyperparameters", "labels", "pairs", "max_length", "trainable_parameters", "metrics")


def command(
    path: Annotated[Path, Argument(metavar="BUNDLE|DELTA", help="A bundle, or a folder that train wrote.")],
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.bundle.card import CARD_FILE, TENSORS_FILE, read_card
    from edgepeft.bundle.manifest import MANIFEST_FILE

    if (path / MANIFEST_FILE).is_file():
        bundle = Bundle(path)
        backbone = bundle.manifest.backbone
        stored = backbone.model_dump(mode="json", include={"family", "model_type", "source", "weights_dtype"})
        tasks = []
        for name in bundle.manifest.tasks:
            entry = bundle.entry(name)
            facts = entry.model_dump(mode="json", include={*_FACTS})
            try:
                bundle.delta_graph(name)
                why, problem = entry.untunable, ""
            except EdgepeftError as error:
                why, problem = "its graph is damaged", str(error)
            tuned = {"tunable": not why, "untunable": why, "problem": problem}
            tasks.append({"task": name, **facts, **_kind(entry), "bytes": entry.n_bytes, **tuned})
        document = {
            "kind": "bundle",
            "backbone": stored | {"bytes": bundle.weights.stat().st_size, "sha256": backbone.sha256.weights},
            "tasks": tasks,
            "templates": {name: entry.method for name, entry in bundle.manifest.templates.items()},
        }
    elif (path / CARD_FILE).is_file():
        card = read_card(path)
        facts = card.model_dump(mode="json")
        files = [path / name for name in (CARD_FILE, TENSORS_FILE)]  # pictures beside them are not the delta
        size = sum(file.stat().st_size for file in files if file.is_file())
        task = {name: facts[name] for name in ("task", *_FACTS)} | _kind(card) | {"bytes": size}
        document = {"kind": "delta", "backbone": facts["backbone"], "tasks": [task]}
    else:
        raise UsageError(f"{path} is neither a bundle ({MANIFEST_FILE}) nor a trained delta ({CARD_FILE}).")
    if as_json:
        print_json({"schema": "edgepeft.info/1", "path": str(path), **document})
    else:
        _show(path, document)


def _show(path: Path, document: Mapping[str, Any]) -> None:
    from edgepeft.bundle.manifest import stated_score

    backbone, tasks = document["backbone"], document["tasks"]
    weights = f", {backbone['weights_dtype']}, {backbone['bytes'] / 1e6:,.1f} MB" if "bytes" in backbone else ""
    title = f"{document['kind']} {path} on {backbone['source']} ({backbone['model_type']}{weights})"
    columns = ("task", "method", Column("answers", overflow="fold"), "of", "score")
    numbers = ("trained parameters", "MB")
    table = plain_table(*columns, numbers=numbers, title=title)
    if document["kind"] == "bundle":
        table.add_column("can be tuned")
    for task in tasks:
        labels = task["labels"] or [f"a {task['answers']}"]
        answers = ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} labels: {', '.join(labels[:4])}, ..."
        answers += "".join(f", or unsure ({what} {share:g})" for what, share in task["promise"].items())
        cells = [task["task"], task["method"], answers, "pairs" if task["pairs"] else "texts"]
        cells += [stated_score(task["metrics"]), f"{task['trainable_parameters']:,}", f"{task['bytes'] / 1e6:,.3f}"]
        cells += [] if "tunable" not in task else ["yes" if task["tunable"] else f"no: {task['untunable']}"]
        table.add_row(*map(Text, cells))
    table_console().print(table)
    for name, method in document.get("templates", {}).items():
        say(f"template {name}: tune starts new tasks of method {method} from it.")
    for task in tasks:
        if task.get("problem"):
            say(f"task {task['task']} cannot be run: {task['problem']}")


def _kind(task: TaskEntry | DeltaCard) -> dict[str, Any]:
    kind = task.task_kind
    return {"kind": kind.name, "answers": kind.answers, "promise": dict(kind.guarantee)}

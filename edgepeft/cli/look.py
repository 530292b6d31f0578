"""Look at a file as `edgepeft train` would: its kind, its parts, its labels, its lengths, and what is odd."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from edgepeft.cli._output import plain_table, print_json, show_table, table_console
from edgepeft.common.messages import printable
from edgepeft.options.base import ROWS_HELP, LabelColumn, LabelSeparator, PairColumn, TaskKind, TextColumn

if TYPE_CHECKING:
    from edgepeft.data.parts import TaskData
    from edgepeft.data.rows import Row

PANEL = "Train"

_MAX_LABELS = 30
_SHOWN = 60  # characters of a text


def command(
    data: Annotated[Path, Argument(help=f"{ROWS_HELP}.")],
    backbone: Annotated[str | None, Option(help="Folder, GGUF file or Hub name: counts its tokens, not words.")] = None,
    max_length: Annotated[int, Option(min=1, help="Tokens that training would keep of a text or pair.")] = 128,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    kind: TaskKind = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    from edgepeft.data.columns import Columns
    from edgepeft.data.parts import PARTS, detect_shape, load_data
    from edgepeft.data.readers import held

    columns = Columns(text_column, pair_column, label_column, separator=label_separator)
    source = held(data)
    shape = None if kind else detect_shape(source, columns)
    if shape is not None and shape.source is not None:
        if as_json:
            patterns = {"kind": shape.kind, "source": shape.source, "target": shape.target}
            print_json({"schema": "edgepeft.look/1", "data": str(data), **patterns})
        else:
            typer.echo(f'{data}: {shape.description}; a T5 reads "{shape.source}" and writes "{shape.target}".')
        return
    found = load_data(source, columns=columns, kind=kind or (shape.kind if shape else None), skip_bad=True)
    task_kind, rows = found.task_kind, [row for part in PARTS for row in getattr(found, part)]
    read, _ = task_kind.read(rows)
    if backbone is None:
        unit, lengths = "words", [len(f"{first} {second or ''}".split()) for first, second in read]
    else:
        from edgepeft.backbones.source import open_backbone

        encoded = open_backbone(backbone).encoder().encode(read, 1 << 20)
        unit, lengths = "tokens", encoded.inputs["attention_mask"].sum(1).tolist()
    counts, examples = Counter[str](), dict[str, str]()
    for row in rows:
        for name in task_kind.names_in(row):  # none where a row has a label of its own
            counts[name] += 1
            examples.setdefault(name, row.sentence1)
    ordered, places = sorted(lengths), {"median": 0.5, "of_95_percent": 0.95, "longest": 1.0}
    spread = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in places.items()}
    document = {
        "schema": "edgepeft.look/1",
        "data": str(data),
        "kind": task_kind.name,
        "split": found.split,
        "rows": len(rows),
        "copies": len(rows) - len({(row.sentence1, row.sentence2, row.label) for row in rows}),
        "lengths": {"unit": unit, **spread, f"over_{max_length}": sum(n > max_length for n in lengths)},
        "labels": [{"label": x, "rows": n, "example": " ".join(examples[x].split())} for x, n in counts.most_common()],
        "train": _train(data, backbone, (text_column, pair_column, label_column, label_separator), kind)
        + " --skip-bad" * bool(found.n_bad),  # as training would refuse what was left out here
    }
    if as_json:
        print_json(document)
    else:
        _show(document, found, rows, max_length)


def _train(data: Path, backbone: str | None, columns: Sequence[str | None], kind: str | None) -> str:
    from edgepeft.data.readers import source_and_split

    options = ("--text-column", "--pair-column", "--label-column", "--label-separator", "--kind")
    given = [part for option, value in zip(options, (*columns, kind), strict=True) if value for part in (option, value)]
    file = Path(source_and_split(data)[0]).name.partition(".")[0]
    name = re.sub("[^A-Za-z0-9_]+", "-", file).strip("-")[:100] or "task"
    return f"edgepeft train --backbone {shlex.quote(backbone or 'BACKBONE')} --data " + shlex.join(
        [str(data), *given, "--task", name, "--out", name]
    )


def _show(document: dict[str, Any], found: TaskData, rows: Sequence[Row], max_length: int) -> None:
    lengths = document["lengths"]
    told = f"{lengths['median']} in the median, 95 % up to {lengths['of_95_percent']}, the longest {lengths['longest']}"
    told += f"; {lengths[f'over_{max_length}']:,} texts have more than {max_length}"
    copies = f"{document['rows']:,}, of which {document['copies']:,} are copies"
    facts = {"kind of task": document["kind"], "rows": copies, "parts": printable(found.split.replace("; ", "\n"))}
    show_table(document["data"], "", rows=(facts | {lengths["unit"]: told}).items())
    if document["labels"]:
        shown = document["labels"][:_MAX_LABELS]
        rows_of = ((printable(x["label"]), printable(x["example"][:_SHOWN]), f"{x['rows']:,}") for x in shown)
        labels = plain_table("label", "an example", rows=rows_of, numbers=("rows",))
        if len(document["labels"]) > _MAX_LABELS:
            labels.caption = f"the first {_MAX_LABELS} of {len(document['labels']):,}; all of them: --json"
        table_console().print(labels)
    else:
        first = rows[0]
        text = " / ".join(" ".join(part.split()) for part in (first.sentence1, first.sentence2 or "") if part)
        typer.echo(printable(f"an example: {text[: 2 * _SHOWN]} -> {found.task_kind.expected(first)}"))
    typer.echo(document["train"])

"""``edgepeft eval``: the metric of the deployed artefact, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepeft.cli._options import (
    ROWS_HELP,
    BundleFolder,
    LabelColumn,
    NoCache,
    PairColumn,
    TextColumn,
    Threads,
)
from edgepeft.cli._output import print_json
from edgepeft.data.rows import Columns, label_number, read_rows
from edgepeft.errors import DataError

__all__ = ["command"]


def command(
    bundle: BundleFolder,
    data: Annotated[Path, typer.Option(help=f"Labelled rows: {ROWS_HELP}.")],
    task: Annotated[str, typer.Option(help="The task to score.")],
    metric: Annotated[str | None, typer.Option(help="accuracy, f1, matthews, pearson, spearman, ...")] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that run together.")] = 32,
    threads: Threads = None,
    no_cache: NoCache = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score a task of the bundle on labelled data."""
    from edgepeft.backbones.tokens import Text
    from edgepeft.data.metrics import check_metric, compute, default_metric
    from edgepeft.runtime.runtime import Runtime, in_batches

    rows = read_rows(data, labels=True, columns=Columns(text_column, pair_column, label_column))
    runtime = Runtime(bundle, threads=threads, cache=not no_cache)
    entry = runtime.bundle.entry(task)
    name = metric or default_metric(entry.labels is None)
    check_metric(name, regression=entry.labels is None, names=entry.labels)
    expected: list[str | float] = []
    predicted: list[str | float] = []
    for batch in in_batches(rows, batch_size):
        for row in batch:
            if entry.labels is not None and row.label not in entry.labels:
                known = ", ".join(entry.labels)
                raise DataError(f"{row.where}: task {task} has no label {row.label!r}. Known: {known}.")
            expected.append(label_number(row) if entry.labels is None else row.label or "")
        texts = [Text(row.sentence1, row.sentence2) for row in batch]
        predicted += [prediction.value for prediction in runtime.predict(task, texts)]
    score = compute(name, expected, predicted, entry.labels)
    if as_json:
        print_json({"bundle": str(bundle), "task": task, "metric": name, "score": score, "rows": len(expected)})
    else:
        typer.echo(f"{task}: {name} {score:.4f} on {len(expected)} rows")

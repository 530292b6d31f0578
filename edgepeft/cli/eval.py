"""``edgepeft eval``: the metric of the deployed artefact, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from edgepeft.cli._output import print_json, show_errors
from edgepeft.cli._progress import shown_steps
from edgepeft.data.rows import Columns, Row, label_number, read_rows
from edgepeft.errors import DataError

if TYPE_CHECKING:
    from edgepeft.runtime.prediction import Prediction

__all__ = ["command"]

_SHOWN = 160  # characters of a text


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
    """Score a task of the bundle on labelled data, and show its errors by class and the worst rows."""
    from edgepeft.backbones.tokens import Text
    from edgepeft.data.by_class import errors_of, worst_of
    from edgepeft.data.metrics import averaged, check_metric, compute, default_metric
    from edgepeft.data.parts import targets_of
    from edgepeft.runtime.runtime import Runtime, in_batches

    rows = read_rows(data, labels=True, columns=Columns(text_column, pair_column, label_column))
    runtime = Runtime(bundle, threads=threads, cache=not no_cache)
    entry = runtime.bundle.entry(task)
    name = metric or default_metric(entry.labels is None)
    check_metric(name, regression=entry.labels is None, names=entry.labels)
    expected: list[str | float] = []
    predicted: list[str | float] = []
    worst: list[dict[str, Any]] = []
    with shown_steps() as show:
        for batch in in_batches(rows, batch_size):
            for row in batch:
                if entry.labels is not None and row.label not in entry.labels:
                    known = ", ".join(entry.labels)
                    raise DataError(f"{row.where}: task {task} has no label {row.label!r}. Known: {known}.")
                expected.append(label_number(row) if entry.labels is None else row.label or "")
            texts = [Text(row.sentence1, row.sentence2) for row in batch]
            answers = runtime.predict(task, texts)
            predicted += [answer.value for answer in answers]
            worst = worst_of([*worst, *_losses(batch, targets_of(batch, entry.labels), answers)])
            show(f"{task}: rows", len(expected), None)
    score, how = compute(name, expected, predicted, entry.labels), averaged(name, entry.labels)
    errors = {**errors_of(expected, predicted, entry.labels), "worst": worst}
    if as_json:
        found = {"bundle": str(bundle), "task": task, "metric": name, "averaged": how, "score": score}
        print_json({"schema": "edgepeft.eval/1", **found, "rows": len(expected), **errors})
    else:
        typer.echo(f"{task}: {name} {score:.4f} on {len(expected)} rows ({how})")
        show_errors(errors)


def _losses(rows: Sequence[Row], targets: Sequence[float], answers: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
    """Each row with its loss: cross entropy, or the squared error of a number."""
    import numpy as np

    from edgepeft.data.metrics import losses_of

    logits = np.array([answer.logits for answer in answers])
    wanted = np.array(targets, np.float64 if answers[0].label is None else np.int64)
    for row, answer, loss in zip(rows, answers, losses_of(logits, wanted).tolist(), strict=True):
        text = " ".join((row.sentence1 + (f" / {row.sentence2}" if row.sentence2 else "")).split())
        shown = {"row": row.short, "text": text[:_SHOWN], "label": row.label or "", "answer": answer.value}
        yield {**shown, "loss": loss}

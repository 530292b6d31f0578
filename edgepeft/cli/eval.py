"""``edgepeft eval``: the metric of the deployed artefact, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.cli._options import (
    ROWS_HELP,
    BundleFolder,
    LabelColumn,
    LabelSeparator,
    NoCache,
    PairColumn,
    TextColumn,
    Threads,
)
from edgepeft.cli._output import messages, print_json, say_cuts, show_errors, shown_steps
from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.by_class import Groups, worst_of
from edgepeft.data.rows import Columns, Row, read_rows
from edgepeft.data.text_template import of_source

if TYPE_CHECKING:
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.tasks.base import TaskType

__all__ = ["command"]

PANEL = "Train"

_SHOWN = 160  # characters of a text
_RIGHT = ("exact_match", "accuracy")  # of text, and of one answer of several

Batches = Iterator[list[Row]]
Scores = dict[str, Any]  # metric, averaged, score, rows, and the errors


def command(
    bundle: BundleFolder,
    data: Annotated[Path, typer.Option(help=f"Labelled rows: {ROWS_HELP}.")],
    task: Annotated[str, typer.Option(help="The task to score.")],
    metric: Annotated[
        str | None, typer.Option(help="accuracy, f1, matthews, pearson, ...; of text f1, exact_match, rouge_l, bleu.")
    ] = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    label_separator: LabelSeparator = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A column: its values' rows are scored each, as MNLI's matched and mismatched."
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Columns that say which question a row answers: the share of questions whose rows are all right is "
            "shown too. Default: idx, where it numbers paragraph, question and answer (MultiRC).",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that run together.")] = 32,
    threads: Threads = None,
    no_cache: NoCache = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score a task of the bundle on labelled data, and show its errors by class and the worst rows."""
    from edgepeft.runtime.decoding import GREEDY, Decoding
    from edgepeft.runtime.runtime import Runtime, in_batches

    runtime = Runtime(bundle, threads=threads, cache=not no_cache)
    entry = runtime.bundle.entry(task)
    names = Columns(text_column, pair_column, label_column, separator=label_separator)
    columns = of_source(names, entry.source, entry.step, entry.target)
    groups = Groups(by, tuple(filter(None, (question or "").split(","))))
    kind, keep = entry.task_kind, columns.source is not None or groups.asked
    right = next((name for name in _RIGHT if name in kind.metrics), None)
    if groups.question and right is None:
        raise UsageError(f"--question asks which rows are right, and of {kind.title} none is; leave it out.")
    how: dict[str, Any] = {"keep": keep, "label_of": kind.label_text, "optional": kind.optional_labels}
    rows = read_rows(data, labels=True, columns=kind.columns(columns), **how)
    longest = entry.max_target_length
    decoding = GREEDY if longest is None else Decoding(max_new_tokens=longest)
    with shown_steps() as show:
        asked = _Asked(runtime, task, metric, decoding, lambda n: show(f"{task}: rows", n, None), groups, right)
        found = (_of_texts if entry.writes else _of_logits)(asked, in_batches(rows, batch_size))
    if runtime.truncation.windows.texts:
        messages().print(f"read in windows: {runtime.truncation.windows}.")
    if as_json:
        print_json({"schema": "edgepeft.eval/1", "bundle": str(bundle), "task": task, **found})
    else:
        typer.echo(f"{task}: {found['metric']} {found['score']:.4f} on {found['rows']} rows ({found['averaged']})")
        for name, part in found.get("parts", {}).items():
            typer.echo(f"  {name}: {part['score']:.4f} on {part['rows']} rows")
        if asked_of := found.get("questions"):
            typer.echo(f"  exact match {asked_of['exact_match']:.4f} on {asked_of['questions']} questions")
        show_errors(found)
    say_cuts(runtime, decoding)


@dataclass(frozen=True)
class _Asked:
    runtime: Runtime
    task: str
    metric: str | None
    decoding: Decoding  # of text
    advance: Callable[[int], None]
    groups: Groups
    right: str | None  # a metric that says of one row whether it is right

    def scores(self, kind: TaskType, metric: str, targets: Any, outputs: Any, worst: list[dict[str, Any]]) -> Scores:
        """Of all rows, of each part, and of questions."""

        def of(metric: str, places: Sequence[int]) -> float:
            return kind.score(metric, *(_chosen(values, places) for values in (targets, outputs)))

        def whether(place: int) -> bool:
            return of(self.right or metric, [place]) == 1

        grouped = self.groups.scores(partial(of, metric), whether if self.right else None)
        facts = {"metric": metric, "averaged": kind.averaged(metric), "score": kind.score(metric, targets, outputs)}
        return {**facts, "rows": len(targets), **grouped, **kind.errors(targets, outputs), "worst": worst}


def _of_logits(asked: _Asked, batches: Batches) -> Scores:
    """What the kind of the task makes of its logits."""
    import numpy as np

    from edgepeft.data.row_grouping import joined

    task, kind, worst = asked.task, asked.runtime.bundle.entry(asked.task).task_kind, list[dict[str, Any]]()
    kind.check_metric(asked.metric or kind.default_metric)
    targets, outputs, kept, together, done = list[Any](), list[Any](), list[Any](), list[Row](), 0
    for batch in batches:
        kind = kind if done else kind.seen(batch)
        name = kind.metric_or_default(asked.metric)
        for row in batch:
            if (odd := kind.strange(row)) is not None:
                raise DataError(f"{row.where}: task {task} has no label {odd!r}. Known: {kind.listed}.")
        asked.groups.add(batch)
        answers = asked.runtime.predict(task, [row.readable for row in batch])
        logits, wanted = kind.judged(answers, batch)
        if kind.whole_batch:
            together += batch
        else:
            losses, said = kind.losses(logits, wanted).tolist(), (answer.value for answer in answers)
            worst = worst_of([*worst, *map(_shown, batch, map(kind.expected, batch), said, losses)])
        targets, outputs, done = [*targets, wanted], [*outputs, kind.outputs(logits)], done + len(batch)
        kept += [logits] if kind.calibrates else []
        asked.advance(done)
    known, given = np.concatenate(targets), np.concatenate(outputs)
    if together:
        losses, answered = kind.losses(given, known).tolist(), kind.answered(together, known, given)
        worst = worst_of(map(_shown, together, map(kind.expected, together), answered, losses))
    found = asked.scores(kind, name, known, given, worst)
    return {**found, **(kind.calibration(known, joined(kept)) if kept else {})}


def _of_texts(asked: _Asked, batches: Batches) -> Scores:
    """What was written; the loss of a row is what its F1 lacks."""
    kind, worst = asked.runtime.bundle.entry(asked.task).task_kind, list[dict[str, Any]]()
    name = kind.metric_or_default(asked.metric)
    written, references = list[str](), list[Sequence[str]]()
    for batch in batches:
        asked.groups.add(batch)
        texts = [row.readable for row in batch]
        answers = [answer.text for answer in asked.runtime.write(asked.task, texts, asked.decoding)]
        known = [row.references or (row.label or "",) for row in batch]
        losses = [1 - kind.score("f1", [k], [a]) for a, k in zip(answers, known, strict=True)]
        worst = worst_of([*worst, *map(_shown, batch, map(kind.expected, batch), answers, losses)])
        written, references = [*written, *answers], [*references, *known]
        asked.advance(len(written))
    return asked.scores(kind, name, references, written, worst)


def _chosen(values: Any, places: Sequence[int]) -> Any:
    return [values[i] for i in places] if isinstance(values, list) else values[list(places)]


def _shown(row: Row, label: Any, answer: Any, loss: float) -> dict[str, Any]:
    text = " ".join((row.sentence1 + (f" / {row.sentence2}" if row.sentence2 else "")).split())
    known = row.label or "" if isinstance(label, float) else label
    return {"row": row.short, "text": text[:_SHOWN], "label": known, "answer": answer, "loss": loss}

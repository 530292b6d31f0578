"""``edgepeft.evaluate``: the metric of the deployed artefact, without torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.progress import shown_steps
from edgepeft.data.by_class import Groups, headline, mislabelled, shown_row, take, worst_of, write_confusion
from edgepeft.data.columns import Columns
from edgepeft.data.readers import source_of
from edgepeft.data.row_grouping import LOWEST
from edgepeft.data.rows import Row, read_rows
from edgepeft.options.base import function_of
from edgepeft.options.verbs import EvalOptions
from edgepeft.runtime.decoding import GREEDY, Decoding
from edgepeft.runtime.inputs import Truncation, in_batches
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.base import TaskType

_RIGHT = ("exact_match", "accuracy")  # of text, and of one answer of several

Batches = Iterator[list[Row]]
Found = dict[str, Any]  # metric, averaged, score, rows, and the errors; or a row


@dataclass(frozen=True)
class EvalResult:
    """``found`` is what `edgepeft eval --json` prints: the metric and its score on ``rows`` rows, and the errors.

    ``truncation`` counts what was cut, texts that were written at ``max_new_tokens``.
    """

    task: str
    found: Mapping[str, Any]
    truncation: Truncation
    max_new_tokens: int

    @property
    def metric(self) -> str:
        """The metric's name."""
        return str(self.found["metric"])

    @property
    def score(self) -> float:
        """The score of all rows."""
        return float(self.found["score"])

    @property
    def rows(self) -> int:
        """How many were scored."""
        return int(self.found["rows"])

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and number of rows of each label; empty where the task has none."""
        return dict(self.found.get("by_class") or {})

    @property
    def headline(self) -> list[dict[str, Any]]:
        """The figures that fit these rows: ``metric``, ``score``, and its 95 % interval from ``low`` to ``high``."""
        return list(self.found["headline"])

    @property
    def mislabelled(self) -> list[dict[str, Any]]:
        """Rows whose label is likely wrong: ``label``, the ``likely`` one and the probabilities of both."""
        return list(self.found.get("mislabelled", ()))

    @property
    def worst(self) -> list[dict[str, Any]]:
        """The rows of the highest loss: ``row``, ``text``, ``label``, ``answer``, ``loss``."""
        return list(self.found["worst"])


@function_of(EvalOptions)
def evaluate(options: EvalOptions) -> EvalResult:
    """Score a task of the bundle on labelled rows, with ONNX Runtime alone.

    Raises:
        UsageError: no such task; a metric that it does not have.
        DataError: rows that cannot be read, or labels that the task does not know.
        BundleError: a bundle that is damaged.
    """
    task = options.task
    with Runtime(options.bundle, threads=options.threads, cache=not options.no_cache) as runtime:
        entry = runtime.bundle.entry(task)
        columns = Columns.of(options)
        if entry.source is not None:
            from edgepeft.data.text_template import of_source

            columns = of_source(columns, entry.source, entry.step, entry.target)
        groups = Groups(options.by, tuple(filter(None, (options.question or "").split(","))))
        kind, keep = entry.task_kind, "all" if columns.source is not None or groups.asked else False
        if options.out is not None and not kind.one_label:
            raise UsageError(f"--out takes a confusion matrix, and {kind.title} has none; leave it out.")
        if options.out is not None and Path(options.out).exists() and not Path(options.out).is_dir():
            raise UsageError(f"--out {options.out} is a file; an output folder is needed. Choose another name.")
        right = next((name for name in _RIGHT if name in kind.metrics), None)
        if groups.question and right is None:
            raise UsageError(f"--question asks which rows are right, and of {kind.title} none is; leave it out.")
        how: dict[str, Any] = {"keep": keep, "label_of": kind.label_text, "optional": kind.optional_labels}
        rows = read_rows(source_of(options.data), labels=True, columns=kind.columns(columns), **how)
        longest = entry.max_target_length
        decoding = GREEDY if longest is None else Decoding(max_new_tokens=longest)
        with shown_steps() as show:
            asked = _Asked(runtime, task, options.metric, decoding, show, groups, right)
            found = (_of_texts if kind.writes else _of_logits)(asked, in_batches(rows, options.batch_size))
        card = entry.metrics  # of its own test rows, which have baselines that take training rows
        if {"metric", "test", "n_test", "baselines"} <= card.keys():
            baselines = {name: each["test"] for name, each in card["baselines"].items()}
            own = {"metric": card["metric"], "score": card["test"], "rows": card["n_test"], "baselines": baselines}
            found["trained"] = own
        if options.out is not None:
            Path(options.out).mkdir(parents=True, exist_ok=True)
            write_confusion(found["confusion"], task, Path(options.out))
        return EvalResult(task, found, runtime.truncation, decoding.max_new_tokens)


@dataclass(frozen=True)
class _Asked:
    runtime: Runtime
    task: str
    metric: str | None
    decoding: Decoding  # of text
    show: Callable[[str, int, int | None], None]
    groups: Groups
    right: str | None  # a metric that says of one row whether it is right

    def scores(self, kind: TaskType, metric: str, targets: Any, outputs: Any, worst: list[dict[str, Any]]) -> Found:
        """Score all rows, each part, and questions."""

        def of(metric: str, places: Sequence[int]) -> float:
            return kind.score(metric, *(take(values, places) for values in (targets, outputs)))

        def whether(place: int) -> bool:
            return of(self.right or metric, [place]) == 1

        grouped = self.groups.scores(partial(of, metric), whether if self.right else None)
        averaged, score = kind.metric_of(metric).averaged, kind.score(metric, targets, outputs)
        facts = {"metric": metric, "averaged": averaged, "score": score}
        figures = headline(kind, targets, outputs, self.metric)
        facts |= {"rows": len(targets), "headline": figures, "baselines": {}}
        if kind.has_baselines and not kind.gives_vectors:  # what answering all these rows alike would score at best
            alike = np.broadcast_to(kind.majority(targets), outputs.shape)
            names = (metric, *(each["metric"] for each in figures))
            scores = {name: kind.score(name, targets, alike) for name in names}
            facts["baselines"] = {"majority": {"score": scores[metric], "scores": scores}}
        return {**facts, **grouped, **kind.errors(targets, outputs), "worst": worst}


def _of_logits(asked: _Asked, batches: Batches) -> Found:
    """Score a task by its logits."""
    task, kind, worst = asked.task, asked.runtime.bundle.entry(asked.task).task_kind, list[dict[str, Any]]()
    kind.metric_of(asked.metric or kind.default_metric)
    targets, outputs, kept, together, done = list[Any](), list[Any](), list[Any](), list[Row](), 0
    wrong = dict[int, Found]()  # the only rows that may be mislabelled
    for rows in batches:
        kind = kind if done else kind.bind_rows(rows)
        batch, name = kind.as_known(rows), kind.metric_or_default(asked.metric)
        for row in batch:
            if (odd := kind.unknown_label(row)) is not None:
                raise DataError(f"{row.where}: task {task} has no label {odd!r}. Known: {kind.listed}.")
        asked.groups.add(batch)
        answers = asked.runtime.predict(task, [row.readable for row in batch])
        logits, wanted = kind.logits_and_targets(answers, batch)
        if kind.whole_batch:
            together += batch
        else:
            losses, said = kind.losses(logits, wanted).tolist(), (answer.value for answer in answers)
            more = kind.probabilities(wanted, logits)
            shown = [*map(_shown, batch, map(kind.expected, batch), said, losses, more)]
            worst = worst_of([*worst, *shown])
            if kind.one_label:
                wrong |= {done + i: row for i, row in enumerate(shown) if row["label"] != row["answer"]}
        targets, outputs, done = [*targets, wanted], [*outputs, kind.outputs(logits)], done + len(batch)
        kept += [logits] if kind.calibrates else []
        asked.show(f"{task}: rows", done, None)
    known, given = np.concatenate(targets), np.concatenate(outputs)
    if together:
        losses, answered = kind.losses(given, known).tolist(), kind.plain_answers(together, known, given)
        worst = worst_of(map(_shown, together, map(kind.expected, together), answered, losses))
    found = asked.scores(kind, name, known, given, worst)
    if not kept:
        return found
    most = max(part.shape[1] for part in kept)  # [n, C]; or [n, K, 1] of candidates, K of each batch's own: padded
    widths = ([(0, 0), (0, most - part.shape[1])] + [(0, 0)] * (part.ndim - 2) for part in kept)
    logits = np.concatenate([np.pad(*each, constant_values=LOWEST) for each in zip(kept, widths, strict=True)])
    return {**found, **kind.calibration(known, logits), **mislabelled(kind.doubted(known, logits), wrong.__getitem__)}


def _of_texts(asked: _Asked, batches: Batches) -> Found:
    """Score what was written; the loss of a row is what its F1 lacks."""
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
        asked.show(f"{asked.task}: rows", len(written), None)
    return asked.scores(kind, name, references, written, worst)


def _shown(row: Row, label: Any, answer: Any, loss: float, more: Mapping[str, Any] = MappingProxyType({})) -> Found:
    known = row.label or "" if isinstance(label, float) else label  # a number as the file has it
    return shown_row(row, known, answer, loss, more)

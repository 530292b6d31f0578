"""How a task is posed as text: what is read, and what is written of a label or in place of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from edgepeft.common.errors import DataError, UsageError, look_up
from edgepeft.data.columns import SENTENCES, Columns
from edgepeft.data.parts import PARTS, TaskData
from edgepeft.data.pattern import Pattern, pattern
from edgepeft.tasks.base import kind_named

_OLDER = {"labels": "classification"}  # what --kind was called where a task is posed as text
_REMEDY = "for a column of another name: --field FIELD=COLUMN"


@dataclasses.dataclass(frozen=True)
class TextTemplate:
    """What ``--format``, or ``--source`` and ``--target``, mean; without a source, texts are read as they are."""

    source: Pattern | None = None
    target: Pattern | None = None  # of text that is written freely
    written: Pattern | None = None  # of labels, which are scored
    format: Format | None = None

    def kind(self, asked: str | None) -> str | None:
        """Return the kind of task that ``--kind`` means here."""
        return asked if self.source is None or asked is None else _OLDER.get(asked, asked)

    def columns(self, given: Columns) -> Columns:
        """Return the columns that are read of rows, of which ``given`` are named."""
        if self.source is None:
            return given
        if given.text or given.pair:
            raise UsageError(
                "--text-column and --pair-column are of texts that are read as they are; a source names its columns "
                "itself, or --field FIELD=COLUMN does."
            )
        if given.label and self.target is not None:
            raise UsageError("--label-column is of labels; a target names its column itself, or --field does.")
        step = self.format.step if self.format else None
        return given._replace(source=self.source, target=self.target, remedy=_REMEDY, step=step)

    def applied(self, data: TaskData, label: str = SENTENCES.names[2]) -> TaskData:
        """Complete the data by what is written of its labels, or make each answer a row of its own."""
        if data.task_kind.writes:
            for part in {"no": (), "train": PARTS[:1], "all": PARTS}[self.format.each_answer if self.format else "no"]:
                rows = tuple(row._replace(label=each) for row in getattr(data, part) for each in row.references)
                data = dataclasses.replace(data, **{part: rows})  # type: ignore[arg-type]
            return data
        if data.labels and self.format is not None:
            return dataclasses.replace(data, targets=self.format.targets_of(data.labels), step=self.format.step)
        if not data.labels or self.written is None:
            return data
        if self.written.fields != (label,):
            raise UsageError(
                f"--target {self.written.text!r} is written of labels, so it reads {{{label}}} alone; for any text: "
                "--kind text."
            )
        targets = tuple(self.written.filled({label: name}, f"label {name}") for name in data.labels)
        return dataclasses.replace(data, targets=targets)


AS_IT_IS = TextTemplate()


def of_source(given: Columns, source: str | None, step: float | None = None, target: str | None = None) -> Columns:
    """Return the columns that an existing task of this source, target and ``step`` of labels reads of rows."""
    if source is None:
        return given
    template = TextTemplate(pattern(source), None if target is None else pattern(target))
    return template.columns(given)._replace(remedy="", step=step)


def text_template(
    *,
    format: str | None = None,
    source: str | None = None,
    target: str | None = None,
    fields: Mapping[str, str],
    kind: str | None = None,
    adapters: bool = False,
) -> TextTemplate:
    """Make a template of the options: of the ``format`` of that name, or of patterns that are read and written.

    ``fields`` names columns by field.  Without a ``kind`` of task what is given decides whether labels are scored or
    text is written.  Compacter's sources depend on whether the method trains ``adapters``.
    """
    if format is not None and (source is not None or target is not None):
        raise UsageError("--format has a source and targets; leave --source and --target out, or --format.")
    wanted = None if kind is None else kind_named(kind if source is None and format is None else _OLDER.get(kind, kind))
    if wanted and not (wanted.one_label or wanted.writes) and (format is not None or target is not None):
        raise UsageError(f"--kind {kind}: here labels or text are written; leave it out, or --format and --target.")
    found = None if format is None else look_up("format", format, FORMATS)
    if found is not None:
        if wanted and wanted.one_label and not found.names:
            raise UsageError(f"--kind {kind}: the answers of {found.name} are no labels, but text; leave --kind out.")
        source, target = found.source_for(adapters=adapters), found.target or None
    if source is None:
        if target is not None or fields or (wanted and wanted.writes):
            raise UsageError('say what is read too: --source "summarize: {text}", or --format.')
        return AS_IT_IS
    if wanted and wanted.writes and target is None and found is None:
        raise UsageError('--kind text: say what is written too: --target "{summary}".')
    reads, writes = pattern(source), None if target is None else pattern(target)
    of_labels = found is None and wanted is not None and wanted.one_label  # are scored: the target's field is theirs
    free = None if of_labels else writes
    known = (*reads.fields, *(free.fields if free else ()))
    read = {field: column for field, column in fields.items() if field in reads.fields or field not in known}
    if free:
        free = free.renamed({field: column for field, column in fields.items() if field in free.fields})
    return TextTemplate(reads.renamed(read), free, writes if of_labels else None, found)


NAMES = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
    "boolq": ("False", "True"),
    "cb": ("entailment", "contradiction", "neutral"),
    "copa": ("choice1", "choice2"),
    "multirc": ("False", "True"),
    "wic": ("False", "True"),
}
"""Names of each task's classes, in the order of their numbers."""

# Fields in T5's order, and in Compacter's where that is another one; a ``;`` stands before a field without a colon.
_GLUE = {
    "cola": ("sentence", ""),
    "sst2": ("sentence", ""),
    "mrpc": ("sentence1 sentence2", ""),
    "qqp": ("question1 question2", ""),
    "mnli": ("hypothesis premise", "premise ;hypothesis"),
    "qnli": ("question sentence", ""),
    "rte": ("sentence1 sentence2", ""),
    "wnli": ("sentence1 sentence2", ""),
}
_SUPERGLUE = {
    "boolq": ("passage question", "question passage"),
    "cb": ("hypothesis premise", "premise hypothesis"),
    "copa": ("choice1 choice2 premise question", "premise choice1 choice2"),
    "multirc": ("question:untagged answer:untagged paragraph:untagged", ""),
    "wic": ("sentence1 sentence2 word", ""),
    "rte": ("hypothesis premise", "premise hypothesis"),
}
_METRICS = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "cb": "f1", "multirc": "f1"}
_RECORD = "record query: {query} entities: {entities:joined} passage: {passage:in-sentences}"


@dataclasses.dataclass(frozen=True)
class Format:
    """How rows of a data set become text."""

    name: str
    source: str
    word: str = ""  # before the source, where no adapters are trained
    names: tuple[str, ...] = ()  # of the classes
    targets: tuple[str, ...] = ()  # what is written of each class
    target: str = ""  # of what is written freely
    metric: str = "accuracy"
    max_length: int | None = None
    each_answer: Literal["no", "train", "all"] = "no"  # is a row: of those that train, or of all
    step: float | None = None  # numbers are rounded to its multiples, which are the names

    def source_for(self, *, adapters: bool) -> str:
        """Return the source, with the word before it unless the method trains adapters."""
        return f"{self.word} {self.source}" if self.word and not adapters else self.source

    def targets_of(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return what is written of each of the data's labels, which are names or numbers of classes."""
        folded, places = [name.casefold() for name in self.names], list[int]()
        for label in labels:
            if label.casefold() in folded:
                places.append(folded.index(label.casefold()))
            elif label.isdecimal() and int(label) < len(self.names):
                places.append(int(label))
            else:
                known = ", ".join(f"{name} (or {i})" for i, name in enumerate(self.names))
                raise DataError(f"no target of {self.name} has the label {label!r}; its labels are {known}.")
        if len(set(places)) < len(places):
            raise DataError(
                f"two of the labels {', '.join(labels)} are the same class of {self.name}; write it one way."
            )
        return tuple(self.targets[place] for place in places)


def _fields(fields: str) -> str:
    """``"question:untagged ;answer"`` -> ``"question: {question:untagged} answer {answer}"``."""
    marks = [(field.removeprefix(";"), "" if field[0] == ";" else ":") for field in fields.split()]
    return " ".join(f"{field.partition(':')[0]}{colon} {{{field}}}" for field, colon in marks)


def _formats() -> Iterator[Format]:
    for group, tasks, start, length in (("glue", _GLUE, "", 128), ("superglue", _SUPERGLUE, "superglue-", 256)):
        for task, (ours, other) in tasks.items():
            names, metric = NAMES[task], _METRICS.get(task, "accuracy")
            yield Format(f"{group}:{task}", f"{task} {_fields(ours)}", names=names, targets=names, metric=metric)
            numbers, word = tuple(map(str, range(len(names)))), start + task
            source = _fields(other or ours)
            more: dict[str, Any] = {"names": names, "targets": numbers, "metric": metric, "max_length": length}
            yield Format(f"compacter:{word}", source, word, **more)
    # STS-B's: how alike two sentences are, from 0.0 to 5.0.
    source = _fields("sentence1 sentence2")
    for name, read, word, step in (("glue:stsb", f"stsb {source}", "", 0.2), ("compacter:stsb", source, "stsb", 0.1)):
        names = tuple(f"{i * step:.1f}" for i in range(round(5 / step) + 1))
        longest = 128 if word else None
        more = {"names": names, "targets": names, "metric": "pearson_spearman", "max_length": longest, "step": step}
        yield Format(name, read, word, **more)
    free: dict[str, Any] = {"target": "{answers}", "metric": "f1"}
    yield Format("superglue:record", _RECORD, each_answer="train", **free)
    of = "superglue-record"
    yield Format(f"compacter:{of}", _RECORD, of, max_length=512, each_answer="all", **free)
    for name, cleaning in (("squad", "spaced"), ("compacter:squad", "spaced-apart")):
        source = _fields(f"question:{cleaning} context:{cleaning}")
        word = name.removeprefix("compacter:") if ":" in name else ""
        yield Format(name, source, word, target=f"{{answers:{cleaning}}}", metric="f1")


FORMATS: dict[str, Format] = {each.name: each for each in _formats()}
"""By name: ``glue:mrpc``, ``superglue:cb`` and ``squad`` are T5's, ``compacter:mrpc`` is Compacter's."""

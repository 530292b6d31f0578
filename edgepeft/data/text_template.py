"""How a task is posed as text: what is read, and what is written of a label or in place of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from edgepeft.common.errors import UsageError
from edgepeft.data.formats import Format, format_named
from edgepeft.data.parts import TaskData
from edgepeft.data.pattern import Pattern, pattern
from edgepeft.data.rows import SENTENCES, Columns
from edgepeft.tasks.base import kind_named

__all__ = ["AS_IT_IS", "Posing", "of_source", "posing"]

_OLDER = {"labels": "classification"}  # what --kind was called where a task is posed as text
_REMEDY = "for a column of another name: --field FIELD=COLUMN"


@dataclasses.dataclass(frozen=True)
class Posing:
    """What ``--format``, or ``--source`` and ``--target``, come to; without a source, texts are read as they are.

    ``target`` is of text that is written freely, ``written`` of labels, which are scored.
    """

    source: Pattern | None = None
    target: Pattern | None = None
    written: Pattern | None = None
    format: Format | None = None

    def kind(self, asked: str | None) -> str | None:
        """The kind of task that ``--kind`` means here."""
        return asked if self.source is None or asked is None else _OLDER.get(asked, asked)

    def columns(self, given: Columns) -> Columns:
        """The columns of its rows, of which ``given`` are named.

        Raises:
            UsageError: a column is named that no pattern reads.
        """
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

    def posed(self, data: TaskData, label: str = SENTENCES.names[2]) -> TaskData:
        """The data with what is written of its labels; where each answer is a row of its own, with these.

        Raises:
            DataError: a label that the format does not have.
            UsageError: what is written of a label depends on more than the label.
        """
        if data.task_kind.writes:
            each = self.format.each_answer if self.format else "no"
            return data if each == "no" else data.of_each_answer(everywhere=each == "all")
        if not data.labels or (self.format is None and self.written is None):
            return data
        if self.format is not None:
            return dataclasses.replace(data, targets=self.format.targets_of(data.labels), step=self.format.step)
        assert self.written is not None
        if self.written.fields != (label,):
            raise UsageError(
                f"--target {self.written.text!r} is written of labels, so it reads {{{label}}} alone; for any text: "
                "--kind text."
            )
        return dataclasses.replace(
            data, targets=tuple(self.written.filled({label: name}, f"label {name}") for name in data.labels)
        )


AS_IT_IS = Posing()


def of_source(given: Columns, source: str | None, step: float | None = None, target: str | None = None) -> Columns:
    """The columns of rows for a task that is there, whose source and target these are, and whose labels' ``step``.

    Raises:
        UsageError: as ``Posing.columns``.
    """
    if source is None:
        return given
    posed = Posing(pattern(source), None if target is None else pattern(target))
    return posed.columns(given)._replace(remedy="", step=step)


def posing(
    *,
    format: str | None = None,
    source: str | None = None,
    target: str | None = None,
    fields: Mapping[str, str],
    kind: str | None = None,
    adapters: bool = False,
) -> Posing:
    """What the options come to.

    Args:
        format: the name of one.
        source: a pattern of one's own, in its place.
        target: that of what is written.
        fields: field -> the column that has it.
        kind: of task: labels are scored against each other, text is written; None decides by what is given.
        adapters: whether the method trains adapters, of which Compacter's sources depend.

    Raises:
        UnknownName: no such format, field, cleaning or kind.
        UsageError: options that exclude each other, or one without what it goes with.
    """
    if format is not None and (source is not None or target is not None):
        raise UsageError("--format has a source and targets; leave --source and --target out, or --format.")
    wanted = None if kind is None else kind_named(kind if source is None and format is None else _OLDER.get(kind, kind))
    if wanted and not (wanted.one_label or wanted.writes) and (format is not None or target is not None):
        raise UsageError(f"--kind {kind}: here labels or text are written; leave it out, or --format and --target.")
    if format is not None:
        found = format_named(format)
        if wanted and wanted.one_label and not found.names:
            raise UsageError(f"--kind {kind}: the answers of {found.name} are no labels, but text; leave --kind out.")
        reads = pattern(found.source_for(adapters=adapters))
        return _renamed(reads, pattern(found.target) if found.target else None, fields, found)
    if source is None:
        if target is not None or fields or (wanted and wanted.writes):
            raise UsageError('say what is read too: --source "summarize: {text}", or --format.')
        return AS_IT_IS
    if wanted and wanted.writes and target is None:
        raise UsageError('--kind text: say what is written too: --target "{summary}".')
    writes = pattern(target) if target is not None else None
    if wanted and wanted.one_label:
        return dataclasses.replace(_renamed(pattern(source), None, fields, None), written=writes)
    return _renamed(pattern(source), writes, fields, None)


def _renamed(source: Pattern, target: Pattern | None, fields: Mapping[str, str], format: Format | None) -> Posing:
    known = (*source.fields, *(target.fields if target else ()))
    of_source = {field: column for field, column in fields.items() if field in source.fields or field not in known}
    of_target = {field: column for field, column in fields.items() if target and field in target.fields}
    renamed = target.renamed(of_target) if target else None
    return Posing(source.renamed(of_source), renamed, format=format)

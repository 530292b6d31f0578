"""Rows of text from files, standard input and datasets: one at a time, each knowing the line it came from.

Columns: ``sentence1``, optionally ``sentence2``, where one is wanted ``label`` or a task's, unless ``Columns`` names
others.  Files and datasets are read by ``readers``.
A task posed as text reads the columns that its source names; see ``pattern``.

Where there is no ``sentence1``, a row may have a list of ``words`` in its place, with ``tags`` or ``spans`` as its
label, or a ``text`` with ``spans``.

Candidates, of which one is picked, are a list of texts in the column ``candidates``; a table's cell holds it as JSON.
Where there is none, columns that are numbered are taken in the order of their numbers, as COPA's and SWAG's files have
them: ``choice1``, ``choice2``; ``ending0``, ...
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.containers import Record, lone_column
from edgepeft.data.conventions import CANDIDATES, FIRST, LABEL, SECOND, by_convention, candidates_in, chosen_column
from edgepeft.data.labels import LabelNames, LabelReader, files_beside, label_text, names_beside, opened
from edgepeft.data.labels import shown as _shown
from edgepeft.data.pattern import Pattern, nearest
from edgepeft.data.readers import Source, reader_of
from edgepeft.data.shapes import HEAD, Shape, shape_of, written_shape
from edgepeft.data.words import Words

if TYPE_CHECKING:
    from edgepeft.options.base import ColumnOptions


class Columns(NamedTuple):
    """What a file calls text, second text and label; a second one that is named has to be there.

    With a ``source`` the text is made of the columns that it names, and with a ``target`` so is the label, which may be
    rounded to multiples of ``step``; ``remedy`` ends the error where a column is not there.  ``fields`` must be there
    and nothing else: rows are left to their tasks.  A label that is a list may be a text with its ``separator``.
    Candidates are read, where a row has some, if they are asked for; with ``passages`` so are a question, a context and
    answers, as SQuAD calls them.  Labels that are numbers may be ``named`` by a file beside the rows.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    source: Pattern | None = None
    target: Pattern | None = None
    remedy: str = ""
    fields: tuple[str, ...] | None = None
    step: float | None = None
    separator: str | None = None
    candidates: bool = False
    passages: bool = False
    named: bool = False

    @property
    def names(self) -> tuple[str, str, str]:
        """Of text, second text and label."""
        return self.text or FIRST, self.pair or SECOND, self.label or LABEL

    @classmethod
    def of(cls, options: ColumnOptions) -> Self:
        """As they are asked for."""
        named = options.text_column, options.pair_column, options.label_column
        return cls(*named, separator=options.label_separator)

    def listed(self, value: Any) -> Any:
        """What stands in a label's column: the parts of a text, where it has a separator."""
        if self.separator is None or not isinstance(value, str):
            return value
        if isinstance(found := opened(value), list):  # as pandas and JSON write it
            return found
        return [part.strip() for part in value.split(self.separator)] if value.strip() else []

    def needed(self, labels: bool) -> dict[str, str]:
        """The columns that must be there, each with the option that names another, if there is one."""
        text, pair, label = self.names
        if self.fields is not None:
            return dict.fromkeys(self.fields, "")
        needed = {text: "--text-column"} | ({pair: "--pair-column"} if self.pair else {})
        if self.source is not None:
            needed = dict.fromkeys(self.source.fields, "")
        if self.target is not None:
            return needed | (dict.fromkeys(self.target.fields, "") if labels else {})
        return needed | ({label: "--label-column"} if labels else {})


class Row(NamedTuple):
    """One text or pair, its label as text and its task (None where none was asked for), where it stands, and the other
    columns (None unless they are kept); all right answers as ``references``, as ``fields`` what patterns read, and the
    ``candidates`` of which one is right."""

    sentence1: str
    sentence2: str | None
    label: str | None
    file: str
    line: int
    task: str | None = None
    others: dict[str, Any] | None = None
    references: tuple[str, ...] = ()
    fields: Mapping[str, Any] | None = None
    candidates: tuple[str, ...] = ()

    @property
    def readable(self) -> tuple[str, str | None] | Mapping[str, Any]:
        """What a task reads: text and second text, or columns."""
        if self.candidates and self.fields is None:
            return {FIRST: self.sentence1, SECOND: self.sentence2, CANDIDATES: self.candidates}
        return (self.sentence1, self.sentence2) if self.fields is None else self.fields

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """``name:line``, where a table has no room for the folder."""
        return f"{Path(self.file).name}:{self.line}"


SENTENCES = Columns()


def read_rows(
    path: Source,
    *,
    labels: bool,
    columns: Columns = SENTENCES,
    task_column: str | None = None,
    keep: bool | Literal["own"] = False,
    label_of: LabelReader = label_text,
    optional: bool = False,
    bad: BadRow | None = None,
) -> Iterator[Row]:
    """Yield a file's rows in order, in constant memory; ``labels`` says that each must have one, unless they are
    ``optional``: then a file without the column, which no option names, has none.

    Either every row has a ``sentence2`` or none has.  Empty texts are texts.  With ``task_column`` each row may name
    a task of its own, so some are pairs and some are not: an empty ``sentence2`` is none, an empty task too.
    ``keep`` keeps the columns that are neither text nor task, and what a task that is posed as text reads; "own" keeps
    all as they stand in the file.
    ``label_of`` makes a label's text of what stands in its column.  ``bad`` is called with each row that cannot be
    used, which is then left out; without it the first one is raised.
    """
    wanted = _Wanted(columns, label_of if labels else None, task_column, keep, optional and columns.label is None)
    return _rows(path, reader_of(path), _RowReader(path, wanted), bad)


def head_of(source: Source) -> list[dict[str, Any]]:
    """The first rows, as they stand there."""
    return [row for _, row in itertools.islice(reader_of(source)(source), HEAD) if isinstance(row, dict)]


_ANSWERS = ("accept", "reject", "ignore")  # as Prodigy writes them
_MOST_BAD = 10_000  # rows before the first that can be used


class _Wanted(NamedTuple):
    """As ``read_rows`` is asked."""

    columns: Columns
    label_of: LabelReader | None
    task_column: str | None
    keep: bool | Literal["own"]
    optional: bool


BadRow = Callable[[int, Mapping[str, Any], DataError], None]
"""(line, columns, why the row cannot be used)"""


def _rows(
    path: Source, read: Callable[[Any], Iterator[Record]], reader: _RowReader, bad: BadRow | None
) -> Iterator[Row]:
    records, some, n_bad, good = read(path), False, 0, False
    head = list(itertools.islice(records, HEAD))
    reader.begin([row for _, row in head if isinstance(row, dict)])
    for line, found in itertools.chain(head, records):
        some = True
        try:
            if isinstance(found, DataError):
                raise found
            row = reader.row(line, found)
        except DataError as error:
            n_bad += 1
            if bad is None or (n_bad > _MOST_BAD and not good):  # a file of something else
                raise
            bad(line, found if isinstance(found, dict) else {}, error)
        else:
            good = True
            yield row
    if not some:
        raise DataError(f"{path} has no rows; expected {reader.expected}.")


class _RowReader:
    """Makes rows of a file's records, by its shape and by the names that its columns have."""

    def __init__(self, path: Source, wanted: _Wanted) -> None:
        self._path, self._wanted = path, wanted
        self._labels = wanted.label_of is not None and not wanted.optional
        self._shape: Shape | None = None
        self._named: Mapping[str, str] = {}
        self._of_prodigy = False
        self._label_names: LabelNames | None = None
        self._pairs: bool | None = None
        self.expected = _expected(wanted.columns, self._labels)

    def begin(self, head: Sequence[Mapping[str, Any]]) -> None:
        """Settle what the columns are, by the first rows."""
        columns = self._wanted.columns
        self._shape = _shape(self._path, head, columns)
        self._of_prodigy = bool(head) and all(found.get("answer") in _ANSWERS for found in head)
        for found in head[:1]:
            record = self._usual(found, str(self._path))
            if columns.source is None and columns.fields is None:
                self._named = by_convention(self._path, record, *columns[:3], labels=self._wanted.label_of is not None)
        if columns.named and self._wanted.label_of is not None:
            self._label_names = self._names_of_labels(head)

    def _names_of_labels(self, head: Sequence[Mapping[str, Any]]) -> LabelNames | None:
        label, values = self._wanted.columns.names[2], list[Any]()
        for found in head if files_beside(self._path) else ():
            with contextlib.suppress(DataError):  # of a row that is refused later
                values.append(self._record(found, str(self._path)).get(label))
        found_names = names_beside(self._path, self._named.get(LABEL, label), values)
        return found_names and found_names.said_of(self._path)

    def _usual(self, found: Mapping[str, Any], where: str) -> dict[str, Any]:
        try:
            shaped = dict(found if self._shape is None else self._shape.read(found))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # other than the first rows are
            told = "" if self._shape is None else self._shape.told
            raise DataError(f"{where}: no row of {told}, as the first ones are; found {_shown(found)}.") from error
        # A row of SQuAD's columns by the usual names of its columns.
        if not self._wanted.columns.passages:
            return shaped
        usual = (
            {FIRST: "question", SECOND: "context", LABEL: "answers"}
            if self._labels
            else {FIRST: "question", SECOND: "context"}
        )
        found = {name: shaped[theirs] for name, theirs in usual.items() if name not in shaped and theirs in shaped}
        return {**shaped, **found}

    def _record(self, found: Mapping[str, Any], where: str) -> dict[str, Any]:
        record = self._usual(found, where)
        record |= {usual: record[name] for usual, name in self._named.items() if name in record}
        return _tagged(record, self._wanted.columns, where, labels=self._labels)

    def row(self, line: int, found: Mapping[str, Any]) -> Row:
        """One record's."""
        columns, label_of, task_column, keep, optional = self._wanted
        path = self._path
        if self._of_prodigy and label_of is not None and (answer := found.get("answer")) != "accept":
            raise DataError(f"{path}:{line}: Prodigy's answer is {answer}, so the row does not say what is right.")
        record = self._record(found, f"{path}:{line}")
        if self._label_names is not None and (label := columns.names[2]) in record:
            record = {**record, label: self._label_names.named(record[label], f"{path}:{line}")}
        _require_columns(path, line, record, found, columns, labels=self._labels)
        there = not optional or record.get(columns.names[2]) is not None
        row = _row(path, line, record, columns, label_of if there else None)
        if keep:
            by_name = columns.source is not None or columns.fields is not None
            used = (task_column,) if by_name else (*columns.names[:2], task_column)
            others = {n: v for n, v in record.items() if n not in used} if keep is True else dict(found)
            row = row._replace(others=others, fields=record if by_name else None)
        if task_column is not None:
            row = row._replace(sentence2=row.sentence2 or None, task=_task(path, line, record, task_column))
        elif self._pairs not in (None, row.sentence2 is not None):
            had, has = ("a", "none") if self._pairs else ("no", "one")
            raise DataError(f"{row.where}: rows before have {had} {SECOND}, this one has {has}; all rows or none.")
        self._pairs = row.sentence2 is not None
        return row


def _shape(path: Source, head: Sequence[Mapping[str, Any]], columns: Columns) -> Shape | None:
    """What the rows are read by, where no option names a column; of patterns, what their columns may lie in."""
    if columns.source is not None or columns.fields is not None:
        return written_shape(head, {name: name for name in head[0]}, path) if head else None
    if any((columns.text, columns.pair, columns.label)):
        return None
    return shape_of(path, head)


def _tagged(record: dict[str, Any], columns: Columns, where: str, *, labels: bool) -> dict[str, Any]:
    """A row of words, or of a text with spans, by the usual names of its columns."""
    if columns.text is not None and isinstance(record.get(columns.text), list):
        record = {**record, "words": record[columns.text]}
    elif columns.text is not None or FIRST in record or not ("words" in record or {"text", "spans"} <= {*record}):
        return record
    words = record.get("words")
    of_text = words is None and "text" in record
    if not of_text and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise DataError(f"{where}: words are a list of texts; found {_shown(words)}.")
    if any(not word.strip() for word in words or ()):
        raise DataError(f"{where}: a word is empty or blank: {_shown(words)}; leave it and its tag out.")
    found = {**record, columns.names[0]: record["text"] if words is None else Words(words)}
    if labels and columns.label in record and isinstance(record[columns.label], list):
        return {**found, columns.label: {"tags": record[columns.label]}}
    told = next((name for name in ("tags", "spans") if name in record), None)
    if told is None or not labels or columns.label is not None:
        return found
    return {**found, LABEL: {told: record[told]}}


def _row(path: Source, line: int, record: dict[str, Any], columns: Columns, label_of: LabelReader | None) -> Row:
    text_column, pair_column, label_column = columns.names
    if columns.fields is not None:
        return Row("", None, None, str(path), line)
    if columns.source is not None:
        # A row of a task that is posed as text.
        assert columns.source is not None
        where, answers = f"{path}:{line}", tuple[str, ...]()
        label = (
            label_of(columns.listed(record[columns.names[2]]), where) if label_of and columns.target is None else None
        )
        if label_of and columns.target is not None:
            answers = tuple(label_text(answer, where, "target") for answer in columns.target.choices(record, where))
            label = answers[0]
        label = nearest(label, columns.step, where) if label and columns.step else label
        return Row(columns.source.filled(record, where), None, label, str(path), line, references=answers)
    first, second = record[text_column], record.get(pair_column)
    for name, text in ((text_column, first), (pair_column, second)):
        if not isinstance(text, str) and not (name == pair_column and text is None):
            raise DataError(f"{path}:{line}: {name} must be a text; found {_shown(text)}.")
    asked = record.get(label_column)
    asked = chosen_column(record, asked) if columns.candidates else columns.listed(asked)
    label = label_of(asked, f"{path}:{line}") if label_of else None
    candidates = candidates_in(record, f"{path}:{line}") if columns.candidates else ()
    return Row(first, second, label, str(path), line, candidates=candidates)


def _task(path: Source, line: int, record: dict[str, Any], column: str) -> str | None:
    """A table's header has to have the column; a JSON object may do without."""
    if column not in record and path.suffix.lower() not in (".jsonl", ".ndjson", ".json"):
        raise DataError(f"{path}:{line}: no column {column} for the row's task. Found columns: {', '.join(record)}.")
    value = record.get(column)
    if not isinstance(value, str | None):
        raise DataError(f"{path}:{line}: {column}, the row's task, must be a text; found {_shown(value)}.")
    return (value or "").strip() or None


def _require_columns(
    path: Source, line: int, record: Collection[str], found: Collection[str], columns: Columns, *, labels: bool
) -> None:
    """``found`` are the file's own columns, ``record`` has those that are read as others too."""
    needed = columns.needed(labels)
    missing = [name for name in needed if name not in record]
    if missing:
        names = ", ".join(map(str, found)) or "none"
        options = ", ".join(f"{needed[name]} NAME" for name in missing if needed[name])
        others = "".join(f"; {words}" for words in (options and f"for others: {options}", columns.remedy) if words)
        raise DataError(
            f"{path}:{line}: no column {' and no column '.join(missing)}. "
            f"Found columns: {names}. Expected: {_expected(columns, labels)}{others}." + lone_column(path.suffix, found)
        )


def _expected(columns: Columns, labels: bool) -> str:
    first, second, label = columns.names
    if columns.source is not None or columns.fields is not None:
        return ", ".join(columns.needed(labels))
    return f"{first}, optionally {second}, and {label}" if labels else f"{first}, optionally {second}"


def verify_columns(data: object, text: str | None, pair: str | None, label: str | None) -> Columns:
    """What the rows of ``--verify-data`` call their columns."""
    columns = Columns(text, pair, label)
    if data is None and columns != SENTENCES:
        raise UsageError("--text-column, --pair-column and --label-column are about --verify-data; give it too.")
    return columns

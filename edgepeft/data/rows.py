"""Rows of text from files, standard input and datasets: one at a time, each knowing the line it came from.

Columns are ``sentence1``, ``sentence2`` of a pair and ``label``, unless ``Columns`` names others; a task posed as text
reads those that its source names (``pattern``).  Without ``sentence1`` a row may have a list of ``words`` with ``tags``
or ``spans``, or a ``text`` with ``spans``.

Candidates, of which one is picked, are a list of texts in the column ``candidates``, as JSON in a table's cell, or the
columns that are numbered, in that order, as COPA and SWAG have them: ``choice1``, ``choice2``; ``ending0``, ...
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from edgepeft.common.errors import DataError
from edgepeft.common.messages import counted, first_of
from edgepeft.data.columns import (
    CANDIDATES,
    FIRST,
    HEAD,
    LABEL,
    SECOND,
    SENTENCES,
    Columns,
    LabelReader,
    candidates_in,
    column_names,
    label_text,
    odd_columns,
    odd_scores,
    quote,
)
from edgepeft.data.label_names import LabelNames, files_beside, names_beside
from edgepeft.data.pattern import cell_at, nearest

if TYPE_CHECKING:
    from edgepeft.data.containers import Record
    from edgepeft.data.readers import Source
    from edgepeft.data.shapes import Shape


class Row(NamedTuple):
    """One text or pair, with its label as text and where it stands."""

    sentence1: str
    sentence2: str | None
    label: str | None
    file: str
    line: int
    task: str | None = None  # where one was asked for
    others: dict[str, Any] | None = None  # the other columns, if they are kept
    references: tuple[str, ...] = ()  # all right answers
    fields: Mapping[str, Any] | None = None  # what patterns read
    candidates: tuple[str, ...] = ()  # of which one is right

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


def read_rows(
    path: Source,
    *,
    labels: bool,
    columns: Columns = SENTENCES,
    task_column: str | None = None,
    keep: bool | Literal["own", "all"] = False,
    label_of: LabelReader = label_text,
    optional: bool = False,
    bad: BadRow | None = None,
) -> Iterator[Row]:
    """Yield a file's rows in order, in constant memory; ``labels`` says that each must have one, unless they are
    ``optional``: then a file without the column, which no option names, has none.

    Either every row has a ``sentence2`` or none has.  Empty texts are texts.  With ``task_column`` each row may name
    a task of its own, so some are pairs and some are not: an empty ``sentence2`` is none, an empty task too.
    ``keep`` keeps the columns that are neither text nor task, and what a task that is posed as text reads; "all" keeps
    these two too, "own" all as they stand in the file.
    ``label_of`` makes a label's text of what stands in its column.  ``bad`` is called with each row that cannot be
    used, which is then left out; without it the first one is raised.
    """
    from edgepeft.data.readers import reader_of  # what answers a text knows rows, and reads no files

    wanted = label_of if labels else None
    reader = _RowReader(path, columns, wanted, task_column, keep, optional and columns.label is None)
    return reader.rows(reader_of(path), bad)


_ANSWERS = ("accept", "reject", "ignore")  # as Prodigy writes them
_MAX_BAD = 10_000  # rows before the first that can be used


BadRow = Callable[[int, Mapping[str, Any], DataError], None]
"""(line, columns, why the row cannot be used)"""


@dataclass
class _RowReader:
    """Make rows of a file's records, by its shape and by the names of its columns; asked as ``read_rows``."""

    path: Source
    columns: Columns
    label_of: LabelReader | None
    task_column: str | None
    keep: bool | Literal["own", "all"]
    optional: bool
    _shape: Shape | None = None
    _named: Mapping[str, str] = field(default_factory=dict)
    _of_prodigy: bool = False
    _label_names: LabelNames | None = None
    _pairs: bool | None = None
    _head: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def _odd_columns(self) -> str:
        """What may be wrong with the columns: the same of each row, for errors are grouped by what they say."""
        return odd_columns(self.path.suffix, self._head)

    @property
    def _labels(self) -> bool:
        """True if each row must have a label."""
        return self.label_of is not None and not self.optional

    @property
    def _by_name(self) -> bool:
        """True if patterns, or the rows' tasks, name the columns that they read."""
        return self.columns.source is not None or self.columns.fields is not None

    @cached_property
    def _dotted(self) -> list[str]:
        """The names that may be of columns within columns."""
        named = (*self.columns[:3], self.task_column, *self.columns.needed(self._labels))
        return [name for name in named if name and "." in name]

    @property
    def expected(self) -> str:
        """The columns, in words."""
        first, second, label = self.columns.names
        if self._by_name:
            return ", ".join(self.columns.needed(self._labels))
        return f"{first}, optionally {second}, and {label}" if self._labels else f"{first}, optionally {second}"

    def rows(self, read: Callable[[Any], Iterator[Record]], bad: BadRow | None) -> Iterator[Row]:
        """Yield the rows that can be used; ``bad`` gets the others."""
        records, n_bad, good = read(self.path), 0, False
        head = list(itertools.islice(records, HEAD))
        if not head:
            raise DataError(f"{self.path} has no rows; expected {self.expected}.")
        self.begin([row for _, row in head if isinstance(row, dict)])
        for line, found in itertools.chain(head, records):
            try:
                if isinstance(found, DataError):
                    raise found
                row = self.row(line, found)
            except DataError as error:
                n_bad += 1
                if bad is None or (n_bad > _MAX_BAD and not good):  # a file of something else
                    raise
                bad(line, found if isinstance(found, dict) else {}, error)
            else:
                good = True
                yield row

    def begin(self, head: Sequence[Mapping[str, Any]]) -> None:
        """Settle what the columns are, by the first rows."""
        from edgepeft.data.shapes import shape_of, written_shape

        columns, self._head = self.columns, head
        if not head:
            return
        if self._by_name:  # what the named columns may lie in
            self._shape = written_shape(head, {name: name for name in head[0]}, self.path)
        elif not any(columns[:3]):  # no option names a column
            self._shape = shape_of(self.path, head, picked=columns.candidates)
        self._of_prodigy = all(found.get("answer") in _ANSWERS for found in head)
        record = self._usual(head[0], str(self.path))
        if not self._by_name:  # a column is one of columns if it is so in all rows
            flat = {name for found in head for name, cell in found.items() if not isinstance(cell, Mapping)}
            record |= dict.fromkeys(flat & record.keys())
            self._named = columns.by_convention(self.path, record, labels=self.label_of is not None)
        if columns.named and self.label_of is not None and files_beside(self.path):
            label, values = columns.names[2], list[Any]()
            for found in head:
                with contextlib.suppress(DataError):  # of a row that is refused later
                    values.append(self._record(found, str(self.path)).get(label))
            self._label_names = names_beside(self.path, self._named.get(LABEL, label), values)
            if self._label_names is not None:
                self._label_names.say(self.path)

    def _usual(self, found: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return a record by the usual names of its shape's columns, and of SQuAD's if passages are read."""
        try:
            shaped = dict(found if self._shape is None else self._shape.read(found))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # other than the first rows are
            told = "" if self._shape is None else self._shape.description
            raise DataError(f"{where}: no row of {told}, as the first ones are; found {quote(found)}.") from error
        for name in self._dotted:
            with contextlib.suppress(KeyError):
                shaped[name] = cell_at(shaped, name)
        if not self.columns.passages:
            return shaped
        usual = {FIRST: "question", SECOND: "context"} | ({LABEL: "answers"} if self._labels else {})
        return shaped | {n: shaped[theirs] for n, theirs in usual.items() if n not in shaped and theirs in shaped}

    def _record(self, found: Mapping[str, Any], where: str) -> dict[str, Any]:
        record = self._usual(found, where)
        record |= {usual: record[name] for usual, name in self._named.items() if name in record}
        return self._tagged(record, where)

    def _tagged(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        """Return a row of words, or of a text with spans, by the usual names of its columns."""
        columns = self.columns
        if columns.text is not None and isinstance(record.get(columns.text), list):
            record = {**record, "words": record[columns.text]}
        elif columns.text is not None or FIRST in record or not ("words" in record or {"text", "spans"} <= {*record}):
            return record
        words = record.get("words")
        of_text = words is None and "text" in record
        if not of_text and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise DataError(f"{where}: words are a list of texts; found {quote(words)}.")
        if any(not word.strip() for word in words or ()):
            raise DataError(f"{where}: a word is empty or blank: {quote(words)}; leave it and its tag out.")
        from edgepeft.data.words import Words

        found = {**record, columns.names[0]: record["text"] if words is None else Words(words)}
        if self._labels and columns.label in record and isinstance(record[columns.label], list):
            return {**found, columns.label: {"tags": record[columns.label]}}
        told = next((name for name in ("tags", "spans") if name in record), None)
        if told is None or not self._labels or columns.label is not None:
            return found
        if of_text and isinstance(record["text"], str):
            require_texts(record["text"], record["spans"], where)
        return {**found, LABEL: {told: record[told]}}

    def row(self, line: int, found: Mapping[str, Any]) -> Row:
        """Make a row of one record; refuse one that lacks columns."""
        columns, where = self.columns, f"{self.path}:{line}"
        record = self._record(found, where)
        if self._of_prodigy and self.label_of is not None and (answer := record.get("answer")) != "accept":
            raise DataError(f"{where}: Prodigy's answer is {answer}, so the row does not say what is right.")
        if self._label_names is not None and (label := columns.names[2]) in record:
            record = {**record, label: self._label_names.named(record[label], where)}
        needed = columns.needed(self._labels)
        within = [name for name in columns.names[:2] if isinstance(found.get(name), Mapping)]  # what is named has a dot
        if missing := [name for name in needed if name not in record or name in within]:
            options = ", ".join(f"{needed[name]} NAME" for name in missing if needed[name])
            remedies = [options and f"for others: {options}", columns.remedy]
            if columns.names[2] in missing:
                remedies.append(odd_scores(self._head))  # the same of each row, too
            raise DataError(
                f"{where}: no column {' and no column '.join(missing)}. "
                f"Found columns: {first_of(column_names(found), _NAMED) or 'none'}. Expected: {self.expected}"
                f"{''.join(f'; {words}' for words in remedies if words)}." + self._odd_columns
            )
        row = self._read(line, record, where)
        if self.keep:
            used = (self.task_column,) if self._by_name else (*columns.names[:2], self.task_column)
            others = {n: v for n, v in record.items() if n not in used or self.keep == "all"}
            others = dict(found) if self.keep == "own" else others
            row = row._replace(others=others, fields=record if self._by_name else None)
        if self.task_column is not None:
            row = row._replace(sentence2=row.sentence2 or None, task=self._task(record, self.task_column, where))
        elif self._pairs not in (None, row.sentence2 is not None):
            had, has = ("a", "none") if self._pairs else ("no", "one")
            raise DataError(f"{row.where}: rows before have {had} {SECOND}, this one has {has}; all rows or none.")
        self._pairs = row.sentence2 is not None
        return row

    def _read(self, line: int, record: dict[str, Any], where: str) -> Row:
        """Read a row of its columns; if it is posed as text, of what its source and target make of them."""
        columns, path = self.columns, str(self.path)
        text_column, pair_column, label_column = columns.names
        label_of = None if self.optional and record.get(label_column) is None else self.label_of
        if columns.fields is not None:
            return Row("", None, None, path, line)
        if columns.source is not None:
            label, answers = None, tuple[str, ...]()
            if label_of and columns.target is not None:
                answers = tuple(label_text(answer, where, "target") for answer in columns.target.choices(record, where))
                label = answers[0]
            elif label_of:
                label = label_of(columns.listed(record[label_column]), where)
            label = nearest(label, columns.step, where) if label and columns.step else label
            return Row(columns.source.filled(record, where), None, label, path, line, references=answers)
        first, second = record[text_column], record.get(pair_column)
        for name, text in ((text_column, first), (pair_column, second)):
            if not isinstance(text, str) and not (name == pair_column and text is None):
                raise DataError(f"{where}: {name} must be a text; found {quote(text)}.")
        label = label_of(columns.label_in(record), where) if label_of else None
        candidates = candidates_in(record, where) if columns.candidates else ()
        return Row(first, second, label, path, line, candidates=candidates)

    def _task(self, record: dict[str, Any], column: str, where: str) -> str | None:
        """Return the row's task; a table's header has to have the column, a JSON object may do without."""
        if column not in record and self.path.suffix.lower() not in (".jsonl", ".ndjson", ".json"):
            raise DataError(f"{where}: no column {column} for the row's task. Found columns: {', '.join(record)}.")
        value = record.get(column)
        if not isinstance(value, str | None):
            raise DataError(f"{where}: {column}, the row's task, must be a text; found {quote(value)}.")
        return (value or "").strip() or None


def require_texts(text: str, spans: Any, where: str) -> None:
    """Refuse a span that has another text than it says: some tools count an emoji, or a line's end, as two characters.

    Blanks are not compared, nor line ends as Label Studio writes them.
    """
    for span in spans if isinstance(spans, list) else ():
        start, end, said = (span.get(n) if isinstance(span, Mapping) else None for n in ("start", "end", "text"))
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(said, str)):
            continue
        there, wanted = ("".join(each.replace("\\n", "").split()) for each in (text[start:end], said))
        if there != wanted:
            at = text.find(said)
            raise DataError(
                f"{where}: the span {start} to {end} says {quote(said)}, and {quote(text[start:end])} stands there; "
                f"{f'that stands at {at}' if at >= 0 else 'that stands nowhere in the text'}. Places count Python's "
                "characters, of which an emoji is one: correct them."
            )


_NAMED = 20  # mistakes of a file, lines of each, and columns of a row


class BadRows:
    """Rows of a file that cannot be used, by what is wrong with them."""

    def __init__(self, path: Source) -> None:
        self._path, self._first = path, list[DataError]()
        self._lines: dict[str, list[str]] = {}  # of each mistake the first ones
        self._times: Counter[str] = Counter()
        self.n = 0

    def __call__(self, line: int, record: Mapping[str, object], error: DataError) -> None:
        """Take note of one, as ``read_rows`` says."""
        self.n += 1
        self._first = self._first or [error]
        what = str(error).removeprefix(f"{self._path}:{line}: ")
        if what in self._lines or len(self._lines) < _NAMED:
            self._times[what] += 1
            if len(lines := self._lines.setdefault(what, [])) < _NAMED:
                lines.append(str(line))

    def raise_or_warn(self, *, skip: bool, some: bool) -> None:
        """Say what is left out, or refuse the file with all that is wrong with it; ``some`` rows can be used."""
        if not self.n:
            return
        each = ((what, first_of(lines, n=self._times[what])) for what, lines in self._lines.items())
        told = " ".join(f"line{'s' * (self._times[what] > 1)} {lines}: {what}" for what, lines in each)
        kinds = {what.partition("; found ")[0] for what in self._lines}
        if skip and some:
            warnings.warn(f"{self._path}: {counted(self.n, 'row is')} left out. {told}", stacklevel=2)
        elif self.n == 1 or (not some and len(kinds) == 1):  # what is true of all rows is told of the first
            raise self._first[0]
        else:
            remedy = "; --skip-bad leaves them out" if some else ""
            raise DataError(f"{self._path}: {self.n} rows cannot be used{remedy}. {told}")

    @property
    def left_out(self) -> str:
        """What ``split`` says of them."""
        return f"; left out of {Path(str(self._path)).name}: {self.n} that cannot be used" if self.n else ""

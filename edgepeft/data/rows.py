"""Rows of text from jsonl, csv and tsv files: one at a time, each knowing the line it came from.

Columns: ``sentence1``, optionally ``sentence2``, where one is wanted ``label`` or a task's; others are ignored.
jsonl has an object a line, csv is quoted as RFC 4180 says, tsv has no quoting (as GLUE's files: a quotation
mark is a character of the text).  Files are UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgepeft.errors import DataError, UsageError

__all__ = ["FORMATS", "Row", "label_number", "read_rows"]

FIRST, SECOND, LABEL = "sentence1", "sentence2", "label"
LONGEST_CELL = 2**31 - 1  # csv's own limit of 131,072 characters is below a long document

Lines = Iterator[tuple[int, str]]
Record = tuple[int, dict[str, Any]]


class Row(NamedTuple):
    """One text or pair, its label as text and its task (None where none was asked for), and where it stands."""

    sentence1: str
    sentence2: str | None
    label: str | None
    file: str
    line: int
    task: str | None = None

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


def read_rows(path: Path, *, labels: bool, task_column: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file in order, in constant memory; ``labels`` says that each must have one.

    Either every row has a ``sentence2`` or none has.  Empty texts are texts.  With ``task_column`` each row may name
    a task of its own, so some are pairs and some are not: an empty ``sentence2`` is none, an empty task too.

    Raises:
        UsageError: no such file, not to be read, or of an unknown extension; raised at once, not at the first row.
        DataError: what is wrong and in which line; while rows are read.
    """
    if path.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"{path} ends in {path.suffix or 'no extension'}; a data file is one of {known}.")
    try:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise UsageError(f"data file {path} {problem}; give a file of {', '.join(FORMATS)}.")
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"data file {path} cannot be read ({error.strerror}); let this user read it.") from error
    return _rows(path, labels, task_column)


def label_number(row: Row) -> float:
    """The label of a regression row.

    Raises:
        DataError: it is not a finite number.
    """
    try:
        number = float(row.label or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{row.where}: the label of a regression is a finite number; found {row.label!r}.")
    return number


def _rows(path: Path, labels: bool, task_column: str | None) -> Iterator[Row]:
    read = FORMATS[path.suffix.lower()]
    pairs: bool | None = None
    for line, record in read(path):
        _require_columns(path, line, record, labels)
        row = _row(path, line, record, labels)
        if task_column is not None:
            row = row._replace(sentence2=row.sentence2 or None, task=_task(path, line, record, task_column))
        elif pairs is not None and pairs != (row.sentence2 is not None):
            had, has = ("a", "none") if pairs else ("no", "one")
            raise DataError(f"{row.where}: rows before have {had} {SECOND}, this one has {has}; all rows or none.")
        pairs = row.sentence2 is not None
        yield row
    if pairs is None:
        raise DataError(f"{path} has no rows; expected {_expected(labels)}.")


def _row(path: Path, line: int, record: dict[str, Any], labels: bool) -> Row:
    first, second = record[FIRST], record.get(SECOND)
    for name, text in ((FIRST, first), (SECOND, second)):
        if not isinstance(text, str) and not (name == SECOND and text is None):
            raise DataError(f"{path}:{line}: {name} must be a text; found {_shown(text)}.")
    label = _label(path, line, record[LABEL]) if labels else None
    return Row(first, second, label, str(path), line)


def _task(path: Path, line: int, record: dict[str, Any], column: str) -> str | None:
    """A table's header has to have the column; a JSON object may do without."""
    if column not in record and path.suffix.lower() != ".jsonl":
        raise DataError(f"{path}:{line}: no column {column} for the row's task. Found columns: {', '.join(record)}.")
    value = record.get(column)
    if not isinstance(value, str | None):
        raise DataError(f"{path}:{line}: {column}, the row's task, must be a text; found {_shown(value)}.")
    return (value or "").strip() or None


def _label(path: Path, line: int, value: Any) -> str:
    """Its text: a number of jsonl and the same number of csv are one label."""
    if isinstance(value, bool) or value is None or not isinstance(value, str | int | float):
        raise DataError(f"{path}:{line}: the label must be a text or a number; found {_shown(value)}.")
    label = str(value).strip()
    if not label or any("\ud800" <= character <= "\udfff" for character in label):
        raise DataError(f"{path}:{line}: the label is empty or not valid Unicode: {_shown(value)}.")
    return label


def _require_columns(path: Path, line: int, columns: Collection[str], labels: bool) -> None:
    missing = [name for name in (FIRST, LABEL)[: 1 + labels] if name not in columns]
    if missing:
        names = ", ".join(map(str, columns)) or "none"
        raise DataError(
            f"{path}:{line}: no column {' and no column '.join(missing)}. "
            f"Found columns: {names}. Expected: {_expected(labels)}."
        )


def _expected(labels: bool) -> str:
    return f"{FIRST}, optionally {SECOND}, and {LABEL}" if labels else f"{FIRST}, optionally {SECOND}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lines(path: Path) -> Lines:
    """Decoded lines with their numbers; each is decoded alone, so that a bad byte has a line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8.") from error


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON ({error}); expected one object a line.") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: expected a JSON object; found {_shown(record)}.")
        yield number, record


def _read_table(path: Path, **form: Any) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    reader = csv.reader((line for _, line in _lines(path)), strict=True, **form)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            if cells and not header:
                header = [name.strip() for name in cells]
                _require_columns(path, line, header, labels=False)
            elif cells:
                yield line, _record(path, line, header, cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not a table ({error}); is a quotation mark missing?") from error


def _record(path: Path, line: int, header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise DataError(f"{path}:{line}: {len(cells)} cells, but {len(header)} columns ({', '.join(header)}).")
    return dict(zip(header, cells, strict=True))


def _read_csv(path: Path) -> Iterator[Record]:
    return _read_table(path)


def _read_tsv(path: Path) -> Iterator[Record]:
    return _read_table(path, delimiter="\t", quoting=csv.QUOTE_NONE)


FORMATS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
}
"""Extension -> reader."""

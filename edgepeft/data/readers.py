"""Files of rows, by extension, and datasets: each record with the number of its line, one at a time.

jsonl has an object a line, json an array of them, csv is quoted as RFC 4180 says and divided as its header is, tsv has
no quoting (as GLUE's files: a quotation mark is a character of the text).  conll has a word a line, its tag in the last
column; an empty line ends a row.  Files are UTF-8, with or without a byte order mark.  ``-`` is standard input, in any
of these formats, told by its first character.

Parquet and arrow files and datasets of Hugging Face are read by the optional extra ``data``.  A dataset is a folder
that its ``save_to_disk`` wrote, one of files that are called by their splits (``train.csv``, or
``data/train-00000-of-00001.parquet`` as on the Hub), or a name of the Hub (``NAME:CONFIG`` where it has several
configurations); ``#SPLIT`` after it names one of its splits.
"""

from __future__ import annotations

import csv
import itertools
import logging
import math
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgepeft.common.bounded import json_rows
from edgepeft.common.errors import DataError, UsageError, requiring
from edgepeft.common.messages import reason
from edgepeft.data.arrow import SAVED, read_arrow, saved_splits
from edgepeft.data.conll import read_conll
from edgepeft.data.containers import PACKED, STDIN, Record, lines_of, read_folder, read_xlsx, read_zip, table_lines
from edgepeft.data.documents import rows_of
from edgepeft.data.label_names import named_classes
from edgepeft.data.labels import shown as _shown
from edgepeft.data.parquet import read_parquet
from edgepeft.data.shapes import LABELS

if TYPE_CHECKING:
    import io

    from edgepeft.options.base import Rows

__all__ = [
    "FORMATS",
    "STDIN",
    "Reader",
    "Record",
    "Records",
    "Source",
    "format_of",
    "is_dataset",
    "lone_column",
    "read_dataset",
    "read_stdin",
    "reader_of",
    "source_of",
    "splits_of",
]

_PARTS = {"train": "train", "validation": "eval", "dev": "eval", "valid": "eval", "test": "test"}


def is_dataset(path: Path) -> bool:
    """Whether it is a saved dataset's folder, or no file but possibly a name of the Hub."""
    folder = Path(_parted(path)[0])
    if folder.exists():
        return any((folder / name).is_file() for name in SAVED) or bool(_files_of_splits(folder))
    return re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(:[\w.-]+)?", str(folder)) is not None


def read_dataset(path: Path) -> Iterator[Record]:
    """Yield (number, row) of a split; labels that are classes by their names."""
    source, split = _parted(path)
    splits = _opened(source)
    if not split and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        raise UsageError(f"{source} has the splits {', '.join(splits)}; name one: {source}#{next(iter(splits))}.")
    yield from enumerate(splits[split], start=1)


class _Split:
    """A split's rows, of labels that are classes the names."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """In their order."""
        features = self._rows.features.items()
        kinds = {column: getattr(kind, "feature", kind) for column, kind in features}  # of lists, their items'
        return named_classes(self._rows, {c: kind.names for c, kind in kinds.items() if hasattr(kind, "int2str")})


def splits_of(path: Path, label: str) -> dict[str, Path]:
    """A dataset's own splits by part (train, eval, test), those left out that lack the labels which another has."""
    source, split = _parted(path)
    splits = {} if split else {name: rows for name, rows in _opened(source).items() if name in _PARTS}
    found = {n: next((row for row in rows if isinstance(row, dict)), {}) for n, rows in splits.items()}
    labels = {column for row in found.values() for column in row if str(column).lower() in {label.lower(), *LABELS}}
    labelled = [n for n, row in found.items() if row and all(row.get(column) not in (None, -1) for column in labels)]
    return {_PARTS[name]: Path(f"{source}#{name}") for name in labelled}


def _parted(path: Path) -> tuple[str, str]:
    source, _, split = str(path).partition("#")
    return source, split


def _opened(source: str) -> Mapping[str, Iterable[dict[str, Any] | DataError]]:
    if (folder := Path(source)).is_dir():
        return _files_of_splits(folder) or saved_splits(folder)
    with requiring("data", f"{source} is no file of rows; as a dataset of Hugging Face it"):
        import datasets
    # Without a network it logs an exception for each of its retries; the sentence below says it once.
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        name, _, config = source.partition(":")
        found = datasets.load_dataset(name, config or None)
    except Exception as error:  # the library's many kinds all mean: not here, not reachable
        raise UsageError(
            f"there is no file {source}, and datasets gave none of that name ({reason(error)}). Give a file, a folder "
            "of save_to_disk, or a name that the Hub has; it needs a network the first time."
        ) from error
    finally:
        hub.setLevel(level)
    return {name: _Split(rows) for name, rows in (found if isinstance(found, dict) else {"train": found}).items()}


class _Files:
    """A split's rows, of one file or several."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[dict[str, Any] | DataError]:
        """In the order of the files' names."""
        for file in self._files:
            yield from (row for _, row in reader_of(file)(file))


def _files_of_splits(folder: Path) -> dict[str, _Files]:
    """By split, a folder's files, or those of ``data`` in it, whose names begin with one; none where none does."""
    for place in (folder, folder / "data"):
        found: dict[str, list[Path]] = {}
        for file in sorted(place.glob("*")):
            split = re.match(rf"({'|'.join(_PARTS)})(?![a-z0-9])", file.name.lower())
            if split and file.is_file() and file.suffix != ".txt" and format_of(file) is not None:
                found.setdefault(split[1], []).append(file)
        if found:
            return {name: _Files(files) for name, files in found.items()}
    return {}


class Records:
    """Rows in memory, read as a file's are: dictionaries, a DataFrame of pandas or polars, a dataset's split."""

    suffix = ""  # a file's would say its format

    def __init__(self, rows: Any) -> None:
        if hasattr(rows, "features"):
            self._rows = list(_Split(rows))
        elif hasattr(rows, "to_dicts"):  # polars
            self._rows = rows.to_dicts()
        elif hasattr(rows, "iterrows"):  # pandas, in which what is missing is NaN
            records = rows.to_dict("records")
            self._rows = [
                {n: None if isinstance(v, float) and math.isnan(v) else v for n, v in r.items()} for r in records
            ]
        else:
            self._rows = list(rows)

    def __str__(self) -> str:
        """In place of a file's name."""
        return "rows"

    def read(self, _: object) -> Iterator[Record]:
        """Yield (number, row)."""
        for number, row in enumerate(self._rows, start=1):
            if isinstance(row, Mapping):
                yield number, dict(row)
            else:
                yield number, DataError(f"{self}:{number}: expected a dictionary of columns; found {_shown(row)}.")


Source = Path | Records


def source_of(rows: Rows) -> Source:
    """A path, or the rows themselves."""
    if isinstance(rows, Records):
        return rows
    if isinstance(rows, str | os.PathLike):
        return Path(rows)
    if not isinstance(rows, Iterable):
        raise UsageError(f"rows are a file's path, dictionaries or a DataFrame; found {_shown(rows)}.")
    return Records(rows)


Reader = Callable[[Path], Iterator[Record]]
_MOST_CELLS = 100_000  # of a line
LONGEST_CELL = 1 << 24  # characters, of four bytes each; csv's own limit of 131,072 is below a long document


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, line in lines_of(path):
        if not line.strip():
            continue
        try:
            record = json_rows(line)
        except ValueError as error:
            yield number, DataError(f"{path}:{number}: not JSON ({error}); expected one object a line.")
        else:
            yield number, _object(record, f"{path}:{number}")


def _object(record: Any, where: str) -> dict[str, Any] | DataError:
    return (
        record if isinstance(record, dict) else DataError(f"{where}: expected a JSON object; found {_shown(record)}.")
    )


def _read_json(path: Path) -> Iterator[Record]:
    """An array of objects; a row's line is its number."""
    try:
        records = json_rows("".join(line for _, line in lines_of(path)))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); expected an array of objects, or jsonl.") from error
    try:
        rows = rows_of(records)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected rows under data, or SQuAD's paragraphs with their qas ({error}).") from error
    for number, record in enumerate(rows, start=1):
        yield number, _object(record, f"{path}:{number}")


def read_stdin(path: Path) -> Iterator[Record]:
    """jsonl, json, tsv or csv, by how it begins."""
    start = cast("io.BufferedReader", sys.stdin.buffer).peek().decode("utf-8-sig", "replace").lstrip()
    if start[:1] in ("{", "["):
        return _read_jsonl(path) if start[0] == "{" else _read_json(path)
    return _read_tsv(path) if "\t" in start.partition("\n")[0] else _read_csv(path)


def _read_table(path: Path, delimiter: str, **form: Any) -> Iterator[Record]:
    """Rows under a header.  Cells that are empty throughout are no row: spreadsheets end in such."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    lines, first = _with_first(path)
    if "\0" in first:
        raise DataError(f"{path}:1: NUL characters, as of UTF-16 without its mark; save the file as UTF-8.")
    if first.lower().startswith("sep=") and len(first) == len("sep=;"):  # Excel's own line
        delimiter, skipped = first[-1], 1
        next(lines)
    else:
        delimiter, skipped = _delimiter(path, first, delimiter), 0
    reader = csv.reader(_few_cells(path, lines, delimiter), strict=True, delimiter=delimiter, **form)
    header: list[str] = []
    line = 1 + skipped
    try:
        for cells in reader:
            if cells and not header:
                header = [name.strip() for name in cells]
                _require_distinct(path, line, header)
            elif any(cells):
                yield line, _record(path, line, header, cells)
            line = reader.line_num + 1 + skipped
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not a table ({error}); is a quotation mark missing?") from error


def _few_cells(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if len(line) > _MOST_CELLS and line.count(delimiter) > _MOST_CELLS:
            raise DataError(f"{path}:{number}: more than {_MOST_CELLS:,} cells in a line; a table of texts has a few.")
        yield line


def _with_first(path: Path) -> tuple[Iterator[str], str]:
    """All lines, and the first one without its end; lines may end in a carriage return alone, as of an old Mac."""
    lines = table_lines(path)
    first = next(lines, "")
    if not first.endswith("\n") and "\r" in first.rstrip("\r"):
        parts = first.splitlines(keepends=True)
        return itertools.chain(parts, lines), parts[0].rstrip("\r")
    return itertools.chain([first], lines), first.rstrip("\r\n")


def _delimiter(path: Path, header: str, usual: str) -> str:
    """What a csv's header is divided by, where that is not a comma."""
    found = [mark for mark in ";\t|" if mark in header]
    if usual != "," or "," in header or len(found) != 1:
        return usual
    warnings.warn(f"{path}: cells are separated by {found[0]!r}, as the header is.", stacklevel=2)
    return found[0]


def _require_distinct(path: Path, line: int, header: list[str]) -> None:
    for name, times in Counter(header).items():
        if times > 1 and name:  # a spreadsheet's go on without names
            raise DataError(f"{path}:{line}: {times} columns are called {name!r}; rename or delete the others.")


def _record(path: Path, line: int, header: list[str], cells: list[str]) -> dict[str, Any] | DataError:
    if len(cells) != len(header):
        return DataError(f"{path}:{line}: {len(cells)} cells, but {len(header)} columns ({', '.join(header)}).")
    return {name: cell for name, cell in zip(header, cells, strict=True) if name}


def _read_csv(path: Path) -> Iterator[Record]:
    return _read_table(path, ",")


def _read_tsv(path: Path) -> Iterator[Record]:
    return _read_table(path, "\t", quoting=csv.QUOTE_NONE)


FORMATS: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".json": _read_json,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".xlsx": read_xlsx,
    ".zip": read_zip,
    ".conll": read_conll,
}
"""Extension -> reader; before ``.gz`` too: the first five alone."""
_OF_CONLL = (".conllu", ".bio", ".iob", ".iob2", ".txt")


def format_of(path: Path) -> Reader | None:
    """By the file's name; a folder's files, one text each, by the folders that they lie in."""
    ends = [suffix.lower() for suffix in path.suffixes[-2:]]
    if ends[-1:] == [PACKED]:
        return FORMATS.get(ends[0]) if ends[0] in (".jsonl", ".ndjson", ".csv", ".tsv", ".json") else None
    if ends[-1:] and ends[-1] in _OF_CONLL:
        return read_conll
    if path.is_dir() and not FORMATS.keys() & {*ends[-1:]} and not is_dataset(path):
        return read_folder
    return FORMATS.get(ends[-1] if ends else "")


def reader_of(path: Source) -> Callable[[Any], Iterator[Record]]:
    """What gives a source's records, with the line of each.

    Raises:
        UsageError: no such file or format, or this user may not read it.
    """
    if isinstance(path, Records):
        return path.read
    if str(path) == STDIN:
        return read_stdin
    reader, known = format_of(path), ", ".join(FORMATS)
    if reader is None and is_dataset(path):
        return read_dataset
    if reader is None:
        odd = f"ends in {path.suffix}" if path.suffix else "has no extension" if path.exists() else "does not exist"
        raise UsageError(f"{path} {odd}; a data file is one of {known}, or a folder of texts in folders.")
    if not path.exists() or (path.is_dir() and path.suffix.lower() in FORMATS):
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"data file {path} {problem}; give a file of {known}.")
    try:
        if path.is_file():
            path.open("rb").close()
    except OSError as error:
        raise UsageError(f"data file {path} cannot be read ({error.strerror}); let this user read it.") from error
    return reader


def lone_column(path: Source, found: Collection[str]) -> str:
    """What may be wrong with a table that has ``found`` one column, in words; else nothing."""
    right = _SEPARATED.get(path.suffix.lower())
    if right is None or len(found) != 1:
        return ""
    used = next((name for mark, name in _SEPARATORS.items() if mark in next(iter(found)) and name != right), None)
    found_out = "The table has one column alone" if used is None else f"The one column looks like several, with {used}"
    return f" {found_out}; a {path.suffix.lower()[1:]} separates them by {right}."


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
_SEPARATED = {".csv": "commas", ".tsv": "tabs"}

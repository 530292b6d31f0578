"""Read files of rows, by extension, datasets, and rows in memory: each record with its line, one at a time.

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

import contextlib
import itertools
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgepeft.common.errors import DataError, UsageError, requiring
from edgepeft.common.messages import reason
from edgepeft.common.resources import json_rows
from edgepeft.data.columns import FIRST, HEAD, LABELS, STDIN, TEXTS, lower_names, quote
from edgepeft.data.containers import PACKED, TABLES, Record, lines_of, read_folder, read_zip, table_in
from edgepeft.data.corpora import marks_in, read_brat, read_conll, read_conllu, read_txt
from edgepeft.data.frames import SAVED, named_split, read_arrow, read_parquet, saved_splits
from edgepeft.data.pattern import cell_at
from edgepeft.data.tables import distinct, read_csv, read_tsv, read_xlsx

if TYPE_CHECKING:
    import io

    from edgepeft.options.base import Rows

_PARTS = {"train": "train", "test": "test", **dict.fromkeys(("validation", "dev", "valid", "val", "eval"), "eval")}
_NO_LABEL = (None, "", -1, "-1")  # as GLUE's and Kaggle's test parts have


def is_dataset(path: Path) -> bool:
    """True for a saved dataset's folder, or what is no file but may be a name of the Hub."""
    folder = Path(source_and_split(path)[0])
    if folder.exists():
        return any((folder / name).is_file() for name in SAVED) or bool(_files_of_splits(folder))
    return re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(:[\w.-]+)?", str(folder)) is not None


def read_dataset(path: Path) -> Iterator[Record]:
    """Yield (number, row) of a split, with the names of classes."""
    source, split = source_and_split(path)
    splits = _opened(source)
    if not split and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        raise UsageError(f"{source} has the splits {', '.join(splits)}; name one: {source}#{next(iter(splits))}.")
    yield from enumerate(splits[split], start=1)


def splits_of(path: Source, label: str, *, tell: Collection[str] = ()) -> dict[str, Path]:
    """Return a dataset's splits by part (train, eval, test), but for those that lack the labels of another; it says
    so of the parts to ``tell``."""
    from edgepeft.data.shapes import TAUGHT

    if not isinstance(path, Path) or format_of(path) or not is_dataset(path):
        return {}
    source, split = source_and_split(path)
    splits = {} if split else {name: rows for name, rows in _opened(source).items() if name in _PARTS}

    def by_names(row: Mapping[str, Any]) -> dict[str, Any]:
        cells = {str(name).lower(): cell for name, cell in row.items()}
        with contextlib.suppress(KeyError):
            cells[label.lower()] = cell_at(row, label)
        return cells

    firsts = {name: itertools.islice(rows, HEAD) for name, rows in splits.items()}
    heads = {name: [by_names(row) for row in rows if isinstance(row, dict)] for name, rows in firsts.items()}
    names = {name for rows in heads.values() for row in rows for name in row}
    labels = {label.lower(), *LABELS} & names

    def taught(rows: list[dict[str, Any]]) -> bool:
        has = [any(row.get(name) not in _NO_LABEL for row in rows) for name in labels or TAUGHT & names]
        return bool(rows) and (all(has) if labels or not has else any(has))

    found = {name: taught(rows) for name, rows in heads.items()}
    for name in (name for name, good in found.items() if _PARTS[name] in tell and not good and any(found.values())):
        told = "its first rows have no labels" if heads[name] else "it has no rows"
        warnings.warn(f"{source}#{name}: {told}; it is left out.", stacklevel=2)
    return {_PARTS[name]: Path(f"{source}#{name}") for name, good in found.items() if good}


def source_and_split(path: Path) -> tuple[str, str]:
    """Divide ``SOURCE#SPLIT``; without one the split is empty."""
    source, mark, split = str(path).rpartition("#")
    return (source, split) if mark and not path.exists() else (str(path), "")  # a folder may be called C#


def _opened(source: str) -> Mapping[str, Iterator[dict[str, Any] | DataError]]:
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
    return {name: named_split(rows) for name, rows in (found if isinstance(found, dict) else {"train": found}).items()}


def _files_of_splits(folder: Path) -> dict[str, Iterator[dict[str, Any] | DataError]]:
    """Return the rows of each split whose name begins files of a folder, or of ``data`` in it."""
    for place in (folder, folder / "data"):
        found: dict[str, list[Path]] = {}
        for file in sorted(place.glob("*")):
            split = re.match(rf"({'|'.join(_PARTS)})(?![a-z0-9])", file.name.lower())
            if split and file.is_file() and file.suffix != ".txt" and format_of(file) is not None:
                found.setdefault(split[1], []).append(file)
        if found:
            return {n: (row for file in of for _, row in reader_of(file)(file)) for n, of in found.items()}
    return {}


class Records:
    """Dictionaries, a DataFrame of pandas or polars, a dataset's split."""

    suffix = ""  # a file's would say its format

    def __init__(self, rows: Any) -> None:
        if hasattr(rows, "with_format"):
            self._rows = list(named_split(rows))
        elif hasattr(rows, "to_dicts"):  # polars
            self._rows = rows.to_dicts()
        elif hasattr(rows, "iterrows"):  # pandas
            distinct(self, 1, [*map(str, rows.columns)])  # of which to_dict takes the last
            records = rows.to_dict("records")
            self._rows = [{name: None if is_missing(value) else value for name, value in r.items()} for r in records]
        else:
            self._rows = list(rows)

    def __str__(self) -> str:
        """Stand in for a file's name."""
        return "rows"

    def read(self, _: object) -> Iterator[Record]:
        """Yield (number, row)."""
        for number, row in enumerate(self._rows, start=1):
            if isinstance(row, Mapping):
                yield number, {str(name): _plain(value) for name, value in row.items()}
            else:
                yield number, DataError(f"{self}:{number}: expected a dictionary of columns; found {quote(row)}.")


def is_missing(value: Any) -> bool:
    """True for what pandas has where nothing is: NaN, and NA of its nullable types or NaT, which equal not even NaN."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> Any:
    """Return a cell as a file's are, lists and numbers of Python: not NumPy's, which pandas has of parquet's lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):  # of labels, whose order is none
        value = sorted(value, key=str)
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


class Held(Records):
    """Standard input's records, which can be read once."""

    def __init__(self, path: Path, records: Iterator[Record]) -> None:
        self._path, self._records = path, list(records)

    def __str__(self) -> str:
        """Name the file that they are from."""
        return str(self._path)

    def read(self, _: object) -> Iterator[Record]:
        """Yield (line, row)."""
        return iter(self._records)


Source = Path | Records


def held(source: Source) -> Source:
    """Return rows that can be read twice: those of standard input in memory."""
    return Held(source, read_stdin(source)) if isinstance(source, Path) and str(source) == STDIN else source


def source_of(rows: Rows) -> Source:
    """Return a path, or the rows themselves."""
    if isinstance(rows, Records):
        return rows
    if isinstance(rows, str | os.PathLike):
        return Path(rows)
    if not isinstance(rows, Iterable):
        raise UsageError(f"rows are a file's path, dictionaries or a DataFrame; found {quote(rows)}.")
    if isinstance(rows, Mapping):
        raise UsageError(
            f"rows are a file's path, dictionaries or a DataFrame; found one mapping of {', '.join(map(str, rows))}. "
            "Give one of these, where each is a part's rows as in a DatasetDict; else a dictionary for each row."
        )
    return Records(rows)


Reader = Callable[[Path], Iterator[Record]]


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, line in lines_of(path):
        if not line.strip():
            continue
        try:
            record = json_rows(line)
        except ValueError as error:
            if number == 1 and re.fullmatch(r"\[\s*(\{.*)?", line.strip()):
                raise DataError(
                    f"{path}: begins as an array of objects does, where one object a line is expected; call it .json."
                ) from error
            yield number, DataError(f"{path}:{number}: not JSON ({error}); expected one object a line.")
        else:
            yield number, _object(record, f"{path}:{number}")


def _object(record: Any, where: str) -> dict[str, Any] | DataError:
    return record if isinstance(record, dict) else DataError(f"{where}: expected a JSON object; found {quote(record)}.")


def _read_json(path: Path) -> Iterator[Record]:
    """Yield an array's objects, a row's line is its number; or an object a line, as pandas and datasets write them."""
    if str(path) != STDIN and _is_of_lines(path):
        yield from _read_jsonl(path)
        return
    try:
        records = json_rows("".join(line for _, line in lines_of(path)))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); expected an array of objects, or an object a line.") from error
    try:
        rows = rows_of(records)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected rows under data, or SQuAD's paragraphs with their qas ({error}).") from error
    for number, record in enumerate(rows, start=1):
        yield number, _object(record, f"{path}:{number}")


def _is_of_lines(path: Path) -> bool:
    lines = lines_of(path)
    _, first = next(lines, (1, ""))
    if not any(line.strip() for _, line in lines):
        return False
    with contextlib.suppress(ValueError):
        return isinstance(json_rows(first), dict)
    return False


def read_stdin(path: Path) -> Iterator[Record]:
    """Read jsonl, json, tsv or csv, by how it begins."""
    start = cast("io.BufferedReader", sys.stdin.buffer).peek().decode("utf-8-sig", "replace").lstrip()
    if start[:1] in ("{", "["):
        return _read_jsonl(path) if start[0] == "{" else _read_json(path)
    return read_tsv(path) if "\t" in start.partition("\n")[0] else read_csv(path)


def rows_of(document: Any) -> list[Any]:
    """Return the rows of JSON: a list, the one under ``data``, SQuAD's paragraphs, or columns as pandas writes them."""
    if not isinstance(document, dict):
        return [_of_spacy(row) for row in document] if isinstance(document, list) else [document]
    rows = document.get("data", _of_index(document))
    if isinstance(rows, list) and rows and all(isinstance(each, dict) and "paragraphs" in each for each in rows):
        return [
            {"context": paragraph.get("context"), **question}
            for each in rows
            for paragraph in each["paragraphs"]
            for question in paragraph.get("qas", ())
        ]
    if isinstance(rows, list):
        names = document.get("columns")  # pandas' "split"
        return rows if names is None else [dict(zip(names, cells, strict=True)) for cells in rows]
    if isinstance(document.get("annotations"), list) and "classes" in document:
        return [_of_spacy(row) for row in document["annotations"] if row]
    # One row of words and tags looks like columns too.
    columns = {name: list(of.values()) if isinstance(of, dict) else of for name, of in document.items()}
    lengths = {len(of) if isinstance(of, list) else None for of in columns.values()}
    if "tokens" in columns or len(lengths) != 1 or None in lengths:
        return [document]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _of_index(document: dict[str, Any]) -> list[Any] | None:
    """Return the rows of pandas' "index", ``{"0": {"text": ...}}``: of usual columns, or more than has columns."""
    rows = [of for name, of in document.items() if name.isdigit() and isinstance(of, dict)]
    if not rows or len(rows) < len(document) or all(map(str.isdigit, rows[0])):
        return None
    return rows if {FIRST, *TEXTS, *LABELS} & lower_names(rows[0]).keys() or len(rows) > max(2, len(rows[0])) else None


def _of_spacy(row: Any) -> Any:
    """Name the parts of a list of two, a text and its entities, as spaCy trains on them; else return the row."""
    if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], dict):
        return {"text": row[0], **row[1]}
    return row


FORMATS: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": _read_json,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".xlsx": read_xlsx,
    ".zip": lambda path: FORMATS.get(table_in(path).suffix.lower(), read_zip)(path),
    ".conll": read_conll,
}
"""Extension -> reader, as errors name them."""

_OTHER_NAMES: dict[str, Reader] = {
    ".feather": read_arrow,
    ".xlsm": read_xlsx,
    ".txt": read_txt,
    ".conllu": read_conllu,
    **dict.fromkeys((".bio", ".iob", ".iob2"), read_conll),
}


_REMEDIES = {
    " Unpack it.": {".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz"},
    " Save it as .xlsx or .csv.": {".xls", ".xlsb", ".ods"},
    " Save it as .parquet.": {".orc", ".pkl", ".pickle"},
}


def format_of(path: Path) -> Reader | None:
    """Return the reader by the file's name; a folder of texts is read by ``read_folder``."""
    end = path.suffix.lower()
    if end == PACKED:
        inner = Path(path.stem).suffix.lower()
        return FORMATS[inner] if inner in TABLES else None
    if end in _OTHER_NAMES:
        return _OTHER_NAMES[end]
    if path.is_dir() and end not in FORMATS and not is_dataset(path):
        return read_brat if any(file.with_suffix(".txt").is_file() for file in marks_in(path)) else read_folder
    return FORMATS.get(end)


def reader_of(path: Source) -> Callable[[Any], Iterator[Record]]:
    """Return what reads a source's records, with the line of each."""
    if isinstance(path, Records):
        return path.read
    if str(path) == STDIN:
        return read_stdin
    reader, known = format_of(path), ", ".join(FORMATS)
    if reader is None and is_dataset(path):
        return read_dataset
    if reader is None:
        odd = f"ends in {path.suffix}" if path.suffix else "has no extension" if path.exists() else "does not exist"
        remedy = next((remedy for remedy, ends in _REMEDIES.items() if path.suffix.lower() in ends), "")
        raise UsageError(f"{path} {odd}; a data file is one of {known}, or a folder of texts in folders.{remedy}")
    if not path.exists() or (path.is_dir() and path.suffix.lower() in FORMATS):
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"data file {path} {problem}; give a file of {known}.")
    try:
        if path.is_file():
            path.open("rb").close()
    except OSError as error:
        raise UsageError(f"data file {path} cannot be read ({error.strerror}); let this user read it.") from error
    return reader


def head_of(source: Source) -> list[dict[str, Any]]:
    """Return the first rows, as they stand there."""
    return [row for _, row in itertools.islice(reader_of(source)(source), HEAD) if isinstance(row, dict)]

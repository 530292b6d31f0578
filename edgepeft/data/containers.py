"""What files hold before rows are told apart: decoded lines, the sheet of a spreadsheet, texts of a folder or zip file.

The name of the folder that a text lies in is its label, as the 20 Newsgroups and the IMDb reviews are published.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from edgepeft.common.errors import DataError, requiring

__all__ = ["PACKED", "STDIN", "Lines", "Record", "lines_of", "read_folder", "read_xlsx", "read_zip", "table_lines"]

STDIN = "-"
PACKED = ".gz"

Record = tuple[int, dict[str, Any] | DataError]  # its line, and the row or why it cannot be read
Lines = Iterator[tuple[int, str]]


def lines_of(path: Path) -> Lines:
    """Decoded lines with their numbers; each is decoded alone, so that a bad byte has a line."""
    packed = path.suffix.lower() == PACKED
    with sys.stdin.buffer if str(path) == STDIN else gzip.open(path) if packed else path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8.") from error


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def table_lines(path: Path) -> Iterator[str]:
    """The lines of a table in UTF-8; or in what spreadsheets write too, UTF-16 or Windows-1252, which is said."""
    if str(path) == STDIN or path.suffix.lower() == PACKED:
        return (line for _, line in lines_of(path))
    with path.open("rb") as file:
        start = file.read(2)
        if start in _UTF_16:
            warnings.warn(f"{path}: read as UTF-16, which its first bytes say.", stacklevel=2)
            return _split(path.read_bytes().decode("utf-16"))
        file.seek(0)
        try:
            for line in file:
                line.decode("utf-8")
            return (line for _, line in lines_of(path))
        except UnicodeDecodeError:
            pass
    with contextlib.suppress(UnicodeDecodeError):
        text = path.read_bytes().decode("cp1252")
        warnings.warn(f"{path}: not UTF-8; read as Windows-1252. Save it as UTF-8 if letters look wrong.", stacklevel=2)
        return _split(text)
    return (line for _, line in lines_of(path))  # which names the line


def _split(text: str) -> Iterator[str]:
    """Where a table's lines end, and not where Unicode has a line separator within a cell."""
    return iter(io.StringIO(text, newline=""))


def read_folder(path: Path) -> Iterator[Record]:
    """Yield (number, text and label), in the order of the names."""
    files = sorted(each for each in path.rglob("*.txt") if not each.name.startswith("."))
    return _labelled(path, ((each.relative_to(path), each.read_bytes()) for each in files))


def read_zip(path: Path) -> Iterator[Record]:
    """The same of a zip file, whose outermost folder may be one for all."""
    try:
        with zipfile.ZipFile(path) as opened:
            names = sorted(name for name in opened.namelist() if name.endswith(".txt") and "__MACOSX" not in name)
            yield from _labelled(path, ((PurePath(name), opened.read(name)) for name in names))
    except (zipfile.BadZipFile, OSError, RuntimeError) as error:  # the last one of files with a password
        raise DataError(f"{path} is no zip file that can be read ({error}).") from error


def _labelled(path: Path, files: Iterable[tuple[PurePath, bytes]]) -> Iterator[Record]:
    number, western = 0, 0
    for number, (name, content) in enumerate(files, start=1):
        if len(name.parts) < 2:
            raise DataError(f"{path}: {name} lies in no folder whose name is its label.")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text, western = content.decode("cp1252", "replace"), western + 1
        yield number, {"text": text, "label": name.parts[-2]}
    if western:
        warnings.warn(f"{path}: {western} files are not UTF-8; they are read as Windows-1252.", stacklevel=2)
    if not number:
        raise DataError(f"{path} has no .txt files; each is one text, in a folder that has its label as name.")


def read_xlsx(path: Path) -> Iterator[Record]:
    """Yield (line, row) of the first sheet under its first row."""
    with requiring("data", "a spreadsheet"):
        from openpyxl import load_workbook
    try:
        sheet = load_workbook(path, read_only=True, data_only=True).worksheets[0]
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path} is no spreadsheet that can be read ({error}).") from error
    rows = sheet.iter_rows(values_only=True)
    header = [str(cell).strip() if cell is not None else "" for cell in next(rows, ())]
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise DataError(f"{path}:1: {header.count(twice)} columns are called {twice!r}; rename or delete the others.")
    for line, cells in enumerate(rows, start=2):
        if any(cell is not None for cell in cells):
            yield line, {name: _cell(cell) for name, cell in zip(header, cells, strict=False) if name}


def _cell(value: Any) -> Any:
    """As a csv has it; a whole number without its point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | int | float | bool) else "" if value is None else str(value)

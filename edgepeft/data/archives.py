"""Rows of what is no text file: folders and zip files of one text a file, spreadsheets.

The name of the folder that a text lies in is its label, as the 20 Newsgroups and the IMDb reviews are published.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from edgepeft.common.errors import DataError, requiring

__all__ = ["read_folder", "read_xlsx", "read_zip"]

Record = tuple[int, dict[str, Any]]


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
    number = 0
    for number, (name, content) in enumerate(files, start=1):
        if len(name.parts) < 2:
            raise DataError(f"{path}: {name} lies in no folder whose name is its label.")
        try:
            yield number, {"text": content.decode("utf-8-sig"), "label": name.parts[-2]}
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: {name} is not UTF-8 ({error.reason}); save it as UTF-8.") from error
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

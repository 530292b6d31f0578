"""Read what files hold: decoded lines, tables and spreadsheets, texts of a folder or zip file.

The name of the folder that a text lies in is its label, as the 20 Newsgroups and the IMDb reviews are published.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import sys
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from edgepeft.common.errors import DataError, requiring
from edgepeft.common.messages import reason

STDIN = "-"
PACKED, ZIPPED = ".gz", ".zip"
TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".json")  # that may be packed
_LISTING_BYTES = 10 << 20  # of a zip file's list: a hundred thousand files
_SHEET_ROWS = 1_048_576  # what Excel has

Record = tuple[int, dict[str, Any] | DataError]  # its line, and the row or why it cannot be read
Lines = Iterator[tuple[int, str]]

ROW_BYTES = 64  # that a row takes at least, whatever is in it
_ROOM_BYTES, _ROOM_TIMES = 32 << 20, 10  # texts take a fourth once they are packed
_SHEET_TIMES = 20  # of a spreadsheet, whose cells are written in XML and take a tenth


class Room:
    """The bytes that a packed file may hold: 32 MiB, and so many times its own."""

    def __init__(self, path: Path, times: int = _ROOM_TIMES) -> None:
        self._path, self._times = path, times
        self.left = _ROOM_BYTES + times * path.stat().st_size

    def require(self, n_bytes: int) -> None:
        """Refuse a file that holds more than is left."""
        if n_bytes > self.left:
            raise DataError(
                f"{self._path} holds more than {self._times} times its own bytes and {_ROOM_BYTES >> 20} MiB, as no "
                "file of texts does. If it is one: unpack it, or save its rows as jsonl."
            )

    def take(self, n_bytes: int) -> None:
        """Count bytes that are read."""
        self.require(n_bytes)
        self.left -= n_bytes


class _Unpacked(io.RawIOBase):
    """A gz file's content, as far as there is room: a line in it may never end."""

    def __init__(self, path: Path) -> None:
        self._room, self._file = Room(path), gzip.GzipFile(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        content = self._file.read1(len(buffer))
        self._room.take(len(content))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


_BROKEN = (EOFError, RuntimeError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error)  # RuntimeError: a password


@contextlib.contextmanager
def _bytes_of(path: Path) -> Iterator[BinaryIO]:
    """Open what a file holds, unpacked; of a zip file its one table."""
    end = path.suffix.lower()
    try:
        with contextlib.ExitStack() as opened:
            if str(path) == STDIN:
                yield opened.enter_context(sys.stdin.buffer)
            elif end == PACKED:
                yield opened.enter_context(io.BufferedReader(_Unpacked(path), 1 << 20))
            elif end == ZIPPED:
                packed = opened.enter_context(_archive(path))
                yield cast("BinaryIO", opened.enter_context(packed.open(_table_in(packed))))
            else:
                yield opened.enter_context(path.open("rb"))
    except _BROKEN as error:
        raise DataError(f"{path} is no {end[1:]} file that can be read ({error}).") from error


def lines_of(path: Path) -> Lines:
    """Yield decoded lines with their numbers; each is decoded alone, so that a bad byte has a line."""
    with _bytes_of(path) as file:
        for number, raw in enumerate(file, start=1):
            yield number, _decoded(path, number, raw)


def lines_as_they_come() -> Iterator[list[tuple[int, str]]]:
    """Yield standard input's lines with their numbers, those together that are there at once."""
    path, number, begun, chunk = Path(STDIN), 0, list[bytes](), b"\n"
    while chunk:
        chunk = cast("io.BufferedReader", sys.stdin.buffer).read1(1 << 16)
        begun.append(chunk)
        if chunk and b"\n" not in chunk:
            continue
        *ended, last = b"".join(begun).split(b"\n")
        ended, begun = (ended, [last]) if chunk or not last else ([last], [])
        yield [(n, _decoded(path, n, raw)) for n, raw in enumerate(ended, start=number + 1)]
        number += len(ended)


def _decoded(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8.") from error


_MAX_ODD = 0.3  # letters that no Western language has; of Cyrillic and Japanese most would be
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def table_lines(path: Path) -> Iterator[str]:
    """Return a table's lines: in UTF-8, or in what spreadsheets write too, UTF-16 or Windows-1252, which is said."""
    lines = (line for _, line in lines_of(path))
    if str(path) == STDIN:
        return lines
    with contextlib.suppress(UnicodeDecodeError), _bytes_of(path) as file:
        for line in file:
            line.decode()
        return lines
    with _bytes_of(path) as file:
        content = file.read()
    if content.startswith(_UTF_16):
        warnings.warn(f"{path}: read as UTF-16, which its first bytes say.", stacklevel=2)
        try:
            return _split(content.decode("utf-16"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-16 as it says ({error.reason}); save it as UTF-8.") from error
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        return lines  # whose error names the line
    odd = sum(c > "\x7f" for c in text)
    if odd > _MAX_ODD * sum(not c.isspace() for c in text):
        raise DataError(f"{path}: neither UTF-8 nor a Western language in Windows-1252; save the file as UTF-8.")
    warnings.warn(f"{path}: not UTF-8; read as Windows-1252. Save it as UTF-8 if letters look wrong.", stacklevel=2)
    return _split(text)


def _split(text: str) -> Iterator[str]:
    """Divide a table where its lines end, and not where Unicode has a line separator within a cell."""
    return iter(io.StringIO(text, newline=""))


def read_folder(path: Path) -> Iterator[Record]:
    """Yield (number, text and label), in the order of the names."""
    files = sorted(each for each in path.rglob("*") if _is_text(each.relative_to(path)) and each.is_file())
    return _labelled(path, ((each.relative_to(path), each.read_bytes()) for each in files))


def _is_text(name: PurePath) -> bool:
    """True for a .txt, or a file without an ending as 20 Newsgroups has them; nothing that a system hides."""
    return name.suffix in (".txt", "") and not any(each.startswith((".", "__MACOSX")) for each in name.parts)


def read_zip(path: Path) -> Iterator[Record]:
    """Yield the same of a zip file, whose outermost folder may be one for all."""
    try:
        with _archive(path) as opened:
            names = [name for name in _names_in(opened) if _is_text(PurePath(name))]
            yield from _labelled(path, ((PurePath(name), opened.read(name)) for name in names))
    except (*_BROKEN, OSError) as error:
        raise DataError(f"{path} is no zip file that can be read ({error}).") from error


def _names_in(archive: zipfile.ZipFile) -> list[str]:
    return sorted({one.filename for one in archive.infolist() if not one.is_dir()})


def _table_in(archive: zipfile.ZipFile) -> str:
    """Name the table of a zip file that has one, and no texts; nothing that a system hides."""
    paths = [PurePath(name) for name in _names_in(archive)]
    tables = [path for path in paths if path.suffix.lower() in TABLES and _is_text(path.with_suffix(""))]
    return str(tables[0]) if len(tables) == 1 and not any(map(_is_text, paths)) else ""


def table_in(path: Path) -> PurePath:
    """Return the name of the one table in a zip file; of any other file nothing."""
    try:
        with _archive(path) as opened:
            return PurePath(_table_in(opened))
    except (*_BROKEN, OSError):  # which its reader says
        return PurePath()


def _archive(path: Path, times: int = _ROOM_TIMES) -> zipfile.ZipFile:
    """Open a zip file whose members have room, by the sizes that it states: no member is read beyond its own."""
    with path.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > _LISTING_BYTES:  # type: ignore[attr-defined]
        raise DataError(f"{path} lists more files than are read from an archive; unpack it, or save its rows as jsonl.")
    opened = zipfile.ZipFile(path)
    try:
        Room(path, times).require(sum(ROW_BYTES + one.file_size for one in opened.infolist()))
    except DataError:
        opened.close()
        raise
    return opened


_PARTS = {"train", "test", "dev", "val", "valid", "validation"}


def _labelled(path: Path, files: Iterable[tuple[PurePath, bytes]]) -> Iterator[Record]:
    number, western, parts = 0, 0, set[str]()
    for number, (name, content) in enumerate(files, start=1):
        if len(name.parts) < 2:
            raise DataError(f"{path}: {name} lies in no folder whose name is its label.")
        parts |= {*name.parts[-3:-2]} & _PARTS
        if len(parts) > 1:
            told = " and ".join(sorted(parts))
            raise DataError(f"{path} has folders {told}: give each as a file is given, --data {path}/train, --test ...")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text, western = content.decode("cp1252", "replace"), western + 1
        yield number, {"text": text, "label": name.parts[-2]}
    if western:
        warnings.warn(f"{path}: {western} files are not UTF-8; they are read as Windows-1252.", stacklevel=1)
    if not number:
        raise DataError(
            f"{path} has no texts (.txt files); each is one text, in a folder that has its label as name. Of other "
            "files give one by its name, unpacked, or a folder with train.csv, test.csv or the like."
        )


def read_xlsx(path: Path) -> Iterator[Record]:
    """Yield (line, row) of the first sheet under its first row."""
    with requiring("data", "a spreadsheet"):
        from openpyxl import load_workbook
    try:
        with _archive(path, _SHEET_TIMES):
            sheet = load_workbook(path, read_only=True, data_only=True).worksheets[0]
        sheet.reset_dimensions()  # which it states of itself: a billion empty rows, if it likes
        rows = sheet.iter_rows(values_only=True, max_row=_SHEET_ROWS)
        numbered = (
            (line, cells) for line, cells in enumerate(rows, start=1) if any(cell is not None for cell in cells)
        )
        first, names = next(numbered, (1, ()))
        header = distinct(path, first, [str(cell).strip() if cell is not None else "" for cell in names])
        nameless = list[int]()
        for line, values in numbered:
            cells = [*map(_cell, values), *[""] * (len(header) - len(values))]  # a row ends with its last cell
            nameless += [line] if _has_nameless(header, cells) else []
            yield line, {name: cell for name, cell in zip(header, cells, strict=False) if name}
        _say_nameless(path, nameless)
    except DataError:
        raise
    except Exception as error:  # of zip, of XML, of what is no number where one is needed
        raise DataError(f"{path} is no spreadsheet that can be read ({reason(error)}).") from error


def _cell(value: Any) -> Any:
    """Return a cell as a csv has it; a whole number without its point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, bool) else "" if value is None else str(value)


def _has_nameless(header: Sequence[str], cells: Sequence[Any]) -> bool:
    """True if a cell stands in a column without a name, and is no number of the row, as pandas writes them first."""
    named = enumerate(itertools.zip_longest(header, cells, fillvalue=""))
    return any(str(cell).strip() and not name and (i or not str(cell).isdigit()) for i, (name, cell) in named)


def _say_nameless(path: Path, lines: Sequence[int]) -> None:
    if lines:
        where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:3]))}{', ...' * (len(lines) > 3)}"
        told = f"{len(lines):,} row{'s have' if len(lines) > 1 else ' has'} cells in columns without a name ({where})"
        remedy = "name these columns, or put what is in them where it belongs"
        warnings.warn(f"{path}: {told}, which are not read; {remedy}.", stacklevel=1)


_MAX_CELLS = 100_000  # of a line

LONGEST_CELL = 1 << 24  # characters, of four bytes each; csv's own limit of 131,072 is below a long document


def _read_table(path: Path, delimiter: str, **form: Any) -> Iterator[Record]:
    """Yield rows under a header.  Cells that are empty throughout are no row: spreadsheets end in such."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    lines, first, skipped = _with_first(path)
    if "\0" in first:
        raise DataError(f"{path}:1: NUL characters, as of UTF-16 without its mark; save the file as UTF-8.")
    others = [mark for mark in ";\t|" if mark in first]
    if first.lower().startswith("sep=") and len(first) == len("sep=;"):  # Excel's own line
        delimiter, skipped = first[-1], skipped + 1
        next(lines)
    elif delimiter == "," and "," not in first and len(others) == 1:
        delimiter = others[0]
        warnings.warn(f"{path}: cells are separated by {delimiter!r}, as the header is.", stacklevel=1)
    reader = csv.reader(_few_cells(path, lines, delimiter), strict=True, delimiter=delimiter, **form)
    header: list[str] = []
    whole, nameless = True, list[int]()
    line = 1 + skipped
    try:
        for cells in reader:
            if cells and not header:
                header = distinct(path, line, [name.strip() for name in cells])
                whole = all(header)
            elif any(cells) and len(cells) != len(header):
                told = f"{len(cells)} cells, but {len(header)} columns ({', '.join(header)})"
                yield line, DataError(f"{path}:{line}: {told}.")
            elif any(cells):
                nameless += [line] if not whole and _has_nameless(header, cells) else []
                yield line, {name: cell for name, cell in zip(header, cells, strict=True) if name}
            line = reader.line_num + 1 + skipped
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not a table ({error}); is a quotation mark missing?") from error
    _say_nameless(path, nameless)


def _few_cells(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if len(line) > _MAX_CELLS and line.count(delimiter) > _MAX_CELLS:
            raise DataError(f"{path}:{number}: more than {_MAX_CELLS:,} cells in a line; a table of texts has a few.")
        yield line


def _with_first(path: Path) -> tuple[Iterator[str], str, int]:
    """Return the lines from the first that has a name in it, this one without its end, and how many were before it;
    lines may end in a carriage return alone, as of old Macs."""
    lines, skipped = table_lines(path), 0
    first = next(lines, "")
    if not first.endswith("\n") and "\r" in first.rstrip("\r"):
        lines = itertools.chain(_split(first), lines)
        first = next(lines)
    while first and not first.strip(",;|\t\r\n "):  # a spreadsheet's empty rows above its table
        first, skipped = next(lines, ""), skipped + 1
    return itertools.chain([first], lines), first.rstrip("\r\n"), skipped


def distinct(path: object, line: int, header: list[str]) -> list[str]:
    """Return a table's header; refuse a name that stands twice in it."""
    if twice := next((name for name in header if name and header.count(name) > 1), None):  # some go on without names
        raise DataError(
            f"{path}:{line}: {header.count(twice)} columns are called {twice!r}; rename or delete the others."
        )
    return header


read_csv = partial(_read_table, delimiter=",")
read_tsv = partial(_read_table, delimiter="\t", quoting=csv.QUOTE_NONE)


def lone_column(suffix: str, found: Collection[str]) -> str:
    """Say what may be wrong with a table in which one column was ``found``; else nothing."""
    right = {".csv": "commas", ".tsv": "tabs"}.get(suffix.lower())
    if right is None or len(found) != 1:
        return ""
    marks = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
    used = next((name for mark, name in marks.items() if mark in next(iter(found)) and name != right), None)
    found_out = "The table has one column alone" if used is None else f"The one column looks like several, with {used}"
    return f" {found_out}; a {suffix.lower()[1:]} separates them by {right}."

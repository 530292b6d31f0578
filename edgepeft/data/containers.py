"""Read what files hold: lines, unpacked and decoded; texts of a folder or zip file.

The name of the folder that a text lies in is its label, as the 20 Newsgroups and the IMDb reviews are published.
"""

import codecs
import contextlib
import gzip
import io
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any, cast

from edgepeft.common.errors import DataError
from edgepeft.common.messages import counted
from edgepeft.data.columns import STDIN

PACKED, ZIPPED = ".gz", ".zip"
TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".json")  # that may be packed
_LISTING_BYTES = 10 << 20  # of a zip file's list: a hundred thousand files

Record = tuple[int, dict[str, Any] | DataError]  # its line, and the row or why it cannot be read

ROW_BYTES = 64  # that a row takes at least, whatever is in it
_ROOM_BYTES, _ROOM_TIMES = 32 << 20, 10  # texts take a fourth once they are packed


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


_BROKEN = (EOFError, RuntimeError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error)  # RuntimeError: a password


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of what a file holds, unpacked; of a zip file its one table."""
    end = path.suffix.lower()
    try:
        if str(path) == STDIN:
            yield from sys.stdin.buffer
        elif end == PACKED:
            room = Room(path)
            with gzip.GzipFile(path) as file:
                while line := file.readline(room.left + 1):  # it may never end
                    room.take(len(line))
                    yield line
        elif end == ZIPPED:
            with archive_at(path) as packed, packed.open(_table_in(packed)) as table:
                yield from table
        else:
            with path.open("rb") as plain:
                yield from plain
    except _BROKEN as error:
        raise DataError(f"{path} is no {end[1:]} file that can be read ({error}).") from error


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield decoded lines with their numbers; each is decoded alone, so that a bad byte has a line."""
    for number, raw in enumerate(_raw_lines(path), start=1):
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
        _refuse_packed(path, raw if number == 1 else b"")
        raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8.") from error


_PACKED_FORMS = {
    b"PK\x03\x04": "a spreadsheet or a zip file; call it .xlsx or .zip",
    b"\xd0\xcf\x11\xe0": "a spreadsheet of Excel before 2007 (.xls); save it as .xlsx or .csv",
    b"\x1f\x8b": "a gzip file; let its name end in .gz",
    b"PAR1\x15": "a parquet file; call it .parquet",  # then a page's header, in Thrift
}


def _refuse_packed(path: Path, beginning: bytes) -> None:
    """Refuse what is no text, by its first bytes."""
    if (form := next((told for mark, told in _PACKED_FORMS.items() if beginning.startswith(mark)), None)) is not None:
        if beginning.startswith(b"\x1f\x8b") and path.suffix.lower() == ".gz":
            form = "packed twice; unpack it once"
        raise DataError(f"{path} is {form}.")


_MAX_ODD = 0.3  # letters that no Western language has; of Cyrillic and Japanese most would be
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def table_lines(path: Path) -> Iterator[str]:
    """Return a table's lines: in UTF-8, or in what spreadsheets write too, UTF-16 or Windows-1252, which is said."""
    lines = (line for _, line in lines_of(path))
    if str(path) == STDIN:
        return lines
    with contextlib.suppress(UnicodeDecodeError):
        for line in _raw_lines(path):
            line.decode()
        return lines
    content = b"".join(_raw_lines(path))
    _refuse_packed(path, content)
    if content.startswith(_UTF_16):
        warnings.warn(f"{path}: read as UTF-16, which its first bytes say.", stacklevel=2)
        try:
            return split_lines(content.decode("utf-16"))
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
    return split_lines(text)


def split_lines(text: str) -> Iterator[str]:
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
        with archive_at(path) as opened:
            names = [name for name in _names_in(opened) if _is_text(PurePath(name))]
            yield from _labelled(path, ((PurePath(name), opened.read(name)) for name in names))
    except (*_BROKEN, OSError) as error:
        raise DataError(f"{path} is no zip file that can be read ({error}).") from error


def _names_in(archive: zipfile.ZipFile) -> list[str]:
    return sorted({one.filename for one in archive.infolist() if not one.is_dir()})


_ABOUT = {"readme", "license", "licence", "copying", "notice", "citation"}  # what stands beside a table


def _table_in(archive: zipfile.ZipFile) -> str:
    """Name the table of a zip file that has one, and no texts; nothing that a system hides."""
    paths = [PurePath(name) for name in _names_in(archive)]
    tables = [path for path in paths if path.suffix.lower() in TABLES and _is_text(path.with_suffix(""))]
    texts = any(_is_text(path) for path in paths if path.stem.lower() not in _ABOUT)
    return str(tables[0]) if len(tables) == 1 and not texts else ""


def table_in(path: Path) -> PurePath:
    """Return the name of the one table in a zip file; of any other file nothing."""
    try:
        with archive_at(path) as opened:
            return PurePath(_table_in(opened))
    except (*_BROKEN, OSError):  # which its reader says
        return PurePath()


def archive_at(path: Path, times: int = _ROOM_TIMES) -> zipfile.ZipFile:
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


def require_one_part(path: Path, folders: Iterable[str]) -> None:
    """Refuse a folder in which several are called as parts of a data set."""
    if len(parts := {*folders} & _PARTS) > 1:
        told = " and ".join(sorted(parts))
        raise DataError(f"{path} has folders {told}: give each as a file is given, --data {path}/train, --test ...")


def _labelled(path: Path, files: Iterable[tuple[PurePath, bytes]]) -> Iterator[Record]:
    number, western, parts = 0, 0, set[str]()
    for number, (name, content) in enumerate(files, start=1):
        if len(name.parts) < 2:
            raise DataError(f"{path}: {name} lies in no folder whose name is its label.")
        parts |= {*name.parts[-3:-2]}
        require_one_part(path, parts)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text, western = content.decode("cp1252", "replace"), western + 1
        yield number, {"text": text, "label": name.parts[-2]}
    if western:
        warnings.warn(f"{path}: {counted(western, 'file is')} not UTF-8; read as Windows-1252.", stacklevel=1)
    if not number:
        raise DataError(
            f"{path} has no texts (.txt files); each is one text, in a folder that has its label as name. Of other "
            "files give one by its name, unpacked, or a folder with train.csv, test.csv or the like."
        )

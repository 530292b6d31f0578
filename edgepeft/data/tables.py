"""Read tables: csv and tsv, and spreadsheets; rows under a header, each with its line."""

import csv
import itertools
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, requiring
from edgepeft.common.messages import counted, reason
from edgepeft.data.columns import FIRST, LABELS, SCORES, TEXTS, number_of, quote
from edgepeft.data.containers import Record, archive_at, split_lines, table_lines

_SHEET_ROWS = 1_048_576  # what Excel has
_SHEET_TIMES = 20  # of a spreadsheet, whose cells are written in XML and take a tenth


def read_xlsx(path: Path) -> Iterator[Record]:
    """Yield (line, row) of the first sheet that is shown and has rows; those after it are named."""
    with requiring("data", "a spreadsheet"):
        from openpyxl import load_workbook
    try:
        with archive_at(path, _SHEET_TIMES):
            every = load_workbook(path, read_only=True, data_only=True).worksheets
        sheets = [sheet for sheet in every if sheet.sheet_state == "visible"] or every
        others = [sheet.title for sheet in every if sheet.max_row != 1]
        left = iter(range(2 * _SHEET_ROWS))  # of all sheets, each of which may be empty to its end
        for sheet in sheets:
            sheet.reset_dimensions()  # which it states of itself: a billion empty rows, if it likes
            rows = zip(sheet.iter_rows(values_only=True, max_row=_SHEET_ROWS), left, strict=False)
            table = ((line, [*map(_cell, row)]) for line, (row, _) in enumerate(rows, 1))
            found = _under_header(path, _below_title(path, table), ragged=True)
            if (first := next(found, None)) is not None:
                _tell_others(path, sheet.title, [title for title in others if title != sheet.title])
                yield from itertools.chain([first], found)
                return
    except DataError:
        raise
    except Exception as error:  # of zip, of XML, of what is no number where one is needed
        raise DataError(f"{path} is no spreadsheet that can be read ({reason(error)}).") from error


def _tell_others(path: Path, title: str, others: list[str]) -> None:
    if others:
        told = f"the sheet {title} is read, and {', '.join(others)} {'is' if len(others) == 1 else 'are'} not"
        warnings.warn(f"{path}: {told}; save another as a file of its own, or move it to the front.", stacklevel=1)


_CODED = re.compile("_x([0-9A-Fa-f]{4})_")  # a character that XML has not, or a carriage return


def _cell(value: Any) -> Any:
    """Return a cell as a csv has it; a whole number without its point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value)
    return value if isinstance(value, bool) else _CODED.sub(lambda code: chr(int(code[1], 16)), text)


def _under_header(path: Path, table: Iterator[tuple[int, list[Any]]], *, ragged: bool = False) -> Iterator[Record]:
    """Yield rows under the first one; a ``ragged`` table's end with their last cell.  Cells that are empty throughout
    are no row: spreadsheets end in such."""
    header, nameless = list[str](), list[int]()
    for line, cells in table:
        if all(cell == "" for cell in cells):
            continue
        if not header:
            header = distinct(path, line, [str(cell).strip() for cell in cells])
            continue
        if len(cells) != len(header) and not ragged:
            told = f"{counted(len(cells), 'cell')}, but {counted(len(header), 'column')} ({', '.join(header)})"
            yield line, DataError(f"{path}:{line}: {told}.")
            continue
        named = [*itertools.zip_longest(header, cells, fillvalue="")]
        odd = [i for i, (name, cell) in enumerate(named) if not name and str(cell).strip()]
        if odd and (odd != [0] or not str(cells[0]).isdigit()):  # the row's number, as pandas writes it first
            nameless.append(line)
        yield line, {name: cell for name, cell in named if name}
    if nameless:
        where = f"line{'s' * (len(nameless) > 1)} {', '.join(map(str, nameless[:3]))}{', ...' * (len(nameless) > 3)}"
        told = f"{counted(len(nameless), 'row has')} cells in columns without a name"
        remedy = "name these columns, or put what is in them where it belongs"
        warnings.warn(f"{path}: {told} ({where}), which are not read; {remedy}.", stacklevel=1)


_TITLE_ROWS = 10  # in which a table begins
_USUAL = {FIRST, *TEXTS, *LABELS, *SCORES}


def _below_title(path: Path, table: Iterator[tuple[int, list[Any]]]) -> Iterator[tuple[int, list[Any]]]:
    """Leave out rows of one cell, a title, above usual names of columns, which is said."""
    head = list(itertools.islice(table, _TITLE_ROWS))
    filled = [[text for cell in cells if (text := str(cell).strip())] for _, cells in head]
    begin = next((i for i, texts in enumerate(filled) if len(texts) > 1), 0)
    above = [text for texts in filled[:begin] for text in texts]
    header = {text.lower() for text in filled[begin]} if above else set()
    if header & _USUAL and above[0].lower() not in _USUAL and all(number_of(name) is None for name in header):
        told = f"the names of columns stand in line {head[begin][0]}; what is above is not read: {quote(above[0])}"
        warnings.warn(f"{path}: {told}.", stacklevel=1)
        head = head[begin:]
    return itertools.chain(head, table)


_MAX_CELLS = 100_000  # of a line

LONGEST_CELL = 1 << 24  # characters, of four bytes each; csv's own limit of 131,072 is below a long document


def _read_table(path: Path, delimiter: str, **form: Any) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    lines, skipped = table_lines(path), 0
    first = next(lines, "")
    if not first.endswith("\n") and "\r" in first.rstrip("\r"):  # alone it ends lines, as of old Macs
        lines = itertools.chain(split_lines(first), lines)
        first = next(lines)
    while first and not first.strip(",;|\t\r\n "):  # a spreadsheet's empty rows above its table
        first, skipped = next(lines, ""), skipped + 1
    lines, first = itertools.chain([first], lines), first.rstrip("\r\n")
    if "\0" in first:
        raise DataError(f"{path}:1: NUL characters, as of UTF-16 without its mark; save the file as UTF-8.")
    if first.startswith("#FORMAT=WebAnno"):
        raise DataError(f"{path} is INCEpTION's WebAnno TSV; export CoNLL 2002, and let its name end in .conll.")
    bare = re.sub(r'"[^"]*"', "", first)  # a name may hold a comma, as a form's question does
    others = [mark for mark in ";\t|" if mark in bare]
    if first.lower().startswith("sep=") and len(first) == len("sep=;"):  # Excel's own line
        delimiter, skipped = first[-1], skipped + 1
        next(lines)
    elif delimiter == "," and "," not in bare and len(others) == 1:
        delimiter = others[0]
        warnings.warn(f"{path}: cells are separated by {delimiter!r}, as the header is.", stacklevel=1)

    line = first

    def few_cells() -> Iterator[str]:
        nonlocal line
        for number, line in enumerate(lines, start=1):
            if len(line) > _MAX_CELLS and line.count(delimiter) > _MAX_CELLS:
                raise DataError(
                    f"{path}:{number}: more than {_MAX_CELLS:,} cells in a line; a table of texts has a few."
                )
            yield line

    def table() -> Iterator[tuple[int, list[Any]]]:
        reader, number = csv.reader(few_cells(), strict=True, delimiter=delimiter, **form), 1 + skipped
        try:
            for cells in reader:
                yield number, cells
                number = reader.line_num + 1 + skipped
        except csv.Error as error:
            why = "is a quotation mark missing?"
            if '\\"' in line:
                why = 'within a cell it stands twice (""), where Spark and MySQL write \\": write the file anew so.'
            raise DataError(f"{path}:{number}: not a table ({error}); {why}") from error

    plain, rows = form.get("quoting") == csv.QUOTE_NONE, _below_title(path, table())
    yield from _under_header(path, _quotes_told(path, rows) if plain else rows)


_QUOTED = re.compile(r'"(?:[^"]|"")*+"')


def _quotes_told(path: Path, table: Iterator[tuple[int, list[Any]]]) -> Iterator[tuple[int, list[Any]]]:
    """Say so if the only quotation marks are those that pandas and spreadsheets put around cells."""
    n_columns = whole = others = 0
    for line, cells in table:
        n_columns = n_columns or len(cells)
        for cell in cells if len(cells) == n_columns else ():
            if '"' in cell:
                quoted = _QUOTED.fullmatch(cell) is not None
                whole, others = whole + quoted, others + (not quoted)
        yield line, cells
    if whole and not others:
        warnings.warn(
            f"{path}: quotation marks around {counted(whole, 'cell')} are characters of the text in a "
            "tsv. If they only quote, as pandas writes cells, call the file .csv: its cells may stand between tabs.",
            stacklevel=1,
        )


def distinct(path: object, line: int, header: list[str]) -> list[str]:
    """Return a table's header; refuse a name that stands twice in it."""
    if twice := next((name for name in header if name and header.count(name) > 1), None):  # some go on without names
        raise DataError(
            f"{path}:{line}: {header.count(twice)} columns are called {twice!r}; rename or delete the others."
        )
    return header


read_csv = partial(_read_table, delimiter=",")
read_tsv = partial(_read_table, delimiter="\t", quoting=csv.QUOTE_NONE)

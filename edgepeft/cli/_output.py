"""Output of the verbs: documents and tables on standard output or in a file."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from edgepeft.common.atomic import check_target, write_json
from edgepeft.common.errors import UsageError
from edgepeft.common.messages import printable
from edgepeft.common.progress import PrintableConsole

if TYPE_CHECKING:
    from edgepeft.bench.result.parts import DocumentPart

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_WIDTH = 120
_STDOUT = "-"
_Result = TypeVar("_Result", bound="DocumentPart")


class _Table(Table):
    """Escapes its cells before they are measured: what the console escapes later would be cut at the cell's width."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As rich's."""
        plain = [Text(printable(cell.plain), style=cell.style) if isinstance(cell, Text) else cell for cell in cells]
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in plain), **options)


def table_console(width: int = _WIDTH) -> Console:
    """Tables, on standard output; ``width`` is that of a file."""
    console = PrintableConsole(highlight=False)
    # A file or a log has no width, and rich would take 80.
    return console if console.is_terminal else PrintableConsole(highlight=False, width=width)


def plain_table(
    *headers: str | Column,
    rows: Iterable[Iterable[Any]] = (),
    numbers: Iterable[str] = (),
    title: str | None = None,
    centred: bool = False,
) -> Table:
    """A table with a rule below its head; ``numbers`` name further columns, aligned to the right."""
    columns = [*headers, *(Column(name, justify="right") for name in numbers)]
    shown = None if title is None else Text(title)
    table = _Table(*columns, title=shown, title_justify="center" if centred else "left", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    return table


def show_table(*headers: str | Column, **how: Any) -> None:
    """Print a table on standard output; arguments as ``plain_table``."""
    table_console().print(plain_table(*headers, **how))


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json_text(document, indent=2))


def json_text(document: Any, indent: int | None = None) -> str:
    """JSON with every character as it is, or escaped where standard output has no encoding for one."""
    text = json_format.dumps(document, indent=indent, ensure_ascii=False, default=str)  # dates, of parquet's columns
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")  # it may be closed, or a test's
    except UnicodeEncodeError:
        return json_format.dumps(document, indent=indent, default=str)
    return text


def result_file(json: str | None) -> Path | None:
    """The file that ``--json`` names; None without the option, and for standard output."""
    if json is None or json == _STDOUT:
        return None
    if Path(json).is_dir():
        raise UsageError(f"--json {json} is a folder; name a file in it.")
    check_target(Path(json))
    return Path(json)


def show_result(result: _Result, json: str | None, table: Callable[[_Result], RenderableType]) -> None:
    """Print the result as JSON alone where ``json`` is standard output; else write it there, and print its table."""
    if json == _STDOUT:
        print_json(result.to_json())
        return
    if json is not None:
        write_json(Path(json), result.to_json())
    table_console().print(table(result))

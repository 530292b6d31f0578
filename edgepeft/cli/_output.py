"""Output of the verbs: documents and tables on standard output or in a file, the rest on standard error.

Long work shows bars on a terminal or in a notebook, and a line every ten seconds where none is drawn.
"""

from __future__ import annotations

import contextlib
import json as json_format
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from edgepeft.common.errors import UsageError
from edgepeft.common.messages import printable

if TYPE_CHECKING:
    from edgepeft.bench.result.parts import Part
    from edgepeft.bench.result.schema import BenchResult
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

__all__ = [
    "INTERRUPTED",
    "bars",
    "json_text",
    "messages",
    "no_longer",
    "plain_table",
    "print_json",
    "result_file",
    "say",
    "say_cuts",
    "show_bench_result",
    "show_errors",
    "show_result",
    "shown_steps",
    "signs_of_life",
    "stages",
    "table_console",
]

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_WIDTH = 120
_MOST_CLASSES = 30  # in a table on the terminal: ten thousand would scroll the score out of sight
_STDOUT = "-"
EVERY_S = 10.0  # a line, where no bar is drawn
_Result = TypeVar("_Result", bound="Part")

_shown: list[Progress] = []  # that are under way, the last one within the others
_ends: list[threading.Event] = []  # of the thread that says what is under way; one at most


class _Console(Console):
    """Shows text from bundles and data without the control characters in it; rich lets some of them through."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments, escaped but for rich's own control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _Table(Table):
    """Escapes its cells before they are measured: what the console escapes later would be cut at the cell's width."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As rich's."""
        super().add_row(*map(_escaped, cells), **options)


def _escaped(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text) and (shown := printable(cell.plain)) != cell.plain:
        return Text(shown, style=cell.style)
    return printable(cell) if isinstance(cell, str) else cell


def messages() -> Console:
    """Messages and progress; standard error, so that standard output stays the result's."""
    console = _Console(stderr=True, highlight=False)
    # Who reads a log or a pipe looks for lines, and rich would break them at 80.
    drawn = console.is_terminal or console.is_jupyter
    return console if drawn else _Console(stderr=True, highlight=False, soft_wrap=True)


def table_console() -> Console:
    """Tables, on standard output."""
    console = _Console(highlight=False)
    # A file or a log has no width, and rich would take 80.
    return console if console.is_terminal else _Console(highlight=False, width=_WIDTH)


def plain_table(
    *headers: str | Column, numbers: Iterable[str] = (), title: str | None = None, centred: bool = False
) -> Table:
    """A table with a rule below its head; ``numbers`` name further columns, aligned to the right."""
    columns = [*headers, *(Column(name, justify="right") for name in numbers)]
    shown = None if title is None else Text(title)
    return _Table(*columns, title=shown, title_justify="center" if centred else "left", box=box.SIMPLE_HEAD)


def show_errors(errors: Mapping[str, Any]) -> None:
    """Print a table of the classes or the residuals, and one of the worst rows."""
    from edgepeft.data.by_class import certainty_figures, class_rows, figure_rows, in_words

    tables = [class_rows(errors)]
    if "figures" in errors and "by_class" in errors:
        tables.append(figure_rows(errors["figures"]))
    tables += [certainty_figures(errors["calibration"])] if "calibration" in errors else []
    shown_tables = []
    for (first, *numbers), rows in tables:
        shown_tables.append(plain_table(first, numbers=numbers))
        for row in rows[:_MOST_CLASSES]:
            shown_tables[-1].add_row(*map(Text, row))
        if len(rows) > _MOST_CLASSES:
            shown_tables[-1].caption = f"the worst of {len(rows):,}; all of them: --json, or edgepeft report"
            shown_tables[-1].caption_justify = "left"
    worst = plain_table("worst rows", *(["text"] if "text" in errors["worst"][0] else []), "label", "answer", "loss")
    for each in errors["worst"]:
        shown = {**each, "loss": f"{each['loss']:.3f}"}
        worst.add_row(*(Text(in_words(value)) for value in shown.values()))
    table_console().print(*shown_tables, worst)


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
    from edgepeft.common.atomic import check_target

    if json is None or json == _STDOUT:
        return None
    if Path(json).is_dir():
        raise UsageError(f"--json {json} is a folder; name a file in it.")
    check_target(Path(json))
    return Path(json)


def show_result(result: _Result, json: str | None, table: Callable[[_Result], RenderableType]) -> None:
    """Print the result as JSON alone where ``json`` is standard output; else write it there, and print its table."""
    from edgepeft.common.atomic import write_json

    if json == _STDOUT:
        print_json(result.to_json())
        return
    if json is not None:
        write_json(Path(json), result.to_json())
    table_console().print(table(result))


def show_bench_result(result: BenchResult, json: str | None) -> None:
    """As ``show_result``, of a benchmark's result."""
    from edgepeft.bench.report.tables import bench_table

    if result.instructions_skipped:
        messages().print(f"instructions were not counted: {result.instructions_skipped}", markup=False)
    show_result(result, json, bench_table)


def say_cuts(runtime: Runtime, decoding: Decoding) -> None:
    """Say how many texts were cut or read in windows, and how many not written to their ends."""
    if runtime.truncation.rows:
        messages().print(f"{runtime.truncation.rows} answer(s) read a text cut to the task's maximal length.")
    if runtime.truncation.windows.texts:
        messages().print(f"read in windows: {runtime.truncation.windows}.")
    if runtime.truncation.texts:
        messages().print(f"{runtime.truncation.texts} text(s) were cut at {decoding.max_new_tokens} tokens.")


@contextlib.contextmanager
def signs_of_life(what: str) -> Iterator[None]:
    """Say every ten seconds on standard error what is under way, unless a terminal's bar does; no bar: ``what``."""
    if _ends:  # a surrounding one says it
        yield
        return
    begin, over = monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(EVERY_S):
            if all(each.disable for each in _shown):
                line = f"{_under_way() or what}, {monotonic() - begin:.0f} s"
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    print(printable(line), file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    _ends.append(over)
    thread.start()
    try:
        yield
    finally:
        over.set()
        _ends.remove(over)
        thread.join()


def say(line: str) -> None:
    """Print a line on standard error, above a bar that is drawn."""
    console = _shown[-1].console if _shown else messages()
    console.print(line, markup=False, soft_wrap=True)


def no_longer() -> None:
    """Say nothing any more: from here on the work is to wait."""
    for over in _ends:
        over.set()


def _under_way() -> str:
    """The bar that is being filled: what, how many of how many, and its state."""
    for each in [bar for shown in reversed(_shown) for bar in shown.tasks if not bar.finished]:
        total = "" if each.total is None else f" of {each.total:,.0f}"
        count = f"{each.completed:,.0f}{total}" if total or each.completed else ""
        return ", ".join(part for part in (each.description, count, each.fields.get("state", "")) if part)
    return ""


def _draws(console: Console) -> bool:
    """Whether it is a terminal, or a notebook that has what rich draws with; another notebook gets the lines."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextlib.contextmanager
def bars(*columns: ProgressColumn, console: Console | None = None, **options: Any) -> Iterator[Progress]:
    """Progress bars on standard error: a description, the bar, how many of how many, and ``columns``; then gone."""
    console = console or messages()
    first = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    drawn = Progress(*first, *columns, console=console, transient=True, disable=not _draws(console), **options)
    with signs_of_life("working"), drawn:
        _shown.append(drawn)
        try:
            yield drawn
        finally:
            _shown.remove(drawn)


@contextlib.contextmanager
def stages(total: int | None) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """A progress bar over ``total`` named steps, None where nobody knows; yields what is entered around each."""
    with bars(TimeElapsedColumn(), SpinnerColumn()) as progress:
        bar: TaskID = progress.add_task("", total=total)

        @contextlib.contextmanager
        def stage(name: str) -> Iterator[None]:
            progress.update(bar, description=name)
            yield
            progress.advance(bar)

        yield stage


@contextlib.contextmanager
def shown_steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on standard error; the callback takes what is being done, how many are done, and of how many."""
    # Redrawn when a step ends: a redrawing thread would take time from what is measured.
    with bars(TimeElapsedColumn(), auto_refresh=False) as bar:
        current = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(current, description=what, completed=done, total=total, refresh=True)

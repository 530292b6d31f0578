"""What verbs that measure share: the file of ``--json``, progress on standard error, the table on standard output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.progress import TimeElapsedColumn

from edgepeft.cli._output import bars, messages, print_json, table_console
from edgepeft.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgepeft.bench.result.parts import Part
    from edgepeft.bench.result.schema import BenchResult

__all__ = ["result_file", "show_bench_result", "show_result", "shown_steps"]

_STDOUT = "-"
_Result = TypeVar("_Result", bound="Part")


def result_file(json: str | None) -> Path | None:
    """The file that ``--json`` names; None without the option, and for standard output.

    Raises:
        UsageError: it is a folder, or cannot be written; found before minutes of measuring.
    """
    from edgepeft.resources import check_target

    if json is None or json == _STDOUT:
        return None
    if Path(json).is_dir():
        raise UsageError(f"--json {json} is a folder; name a file in it.")
    check_target(Path(json))
    return Path(json)


def show_result(result: _Result, json: str | None, table: Callable[[_Result], RenderableType]) -> None:
    """Print the result as JSON alone where ``json`` is standard output; else write it there, and print its table."""
    from edgepeft.resources import write_json

    if json == _STDOUT:
        print_json(result.to_json())
        return
    if json is not None:
        write_json(Path(json), result.to_json())
    table_console().print(table(result))


def show_bench_result(result: BenchResult, json: str | None) -> None:
    """As ``show_result``, of a benchmark's result."""
    from edgepeft.report.tables import bench_table

    if result.instructions_skipped:
        messages().print(f"instructions were not counted: {result.instructions_skipped}", markup=False)
    show_result(result, json, bench_table)


@contextmanager
def shown_steps() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error; the callback takes what is being done, how many are done, and of how many."""
    # Redrawn when a step ends: a redrawing thread would take time from what is measured.
    with bars(TimeElapsedColumn(), transient=True, auto_refresh=False) as bar:
        current = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(current, description=what, completed=done, total=total, refresh=True)

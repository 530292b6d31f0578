"""A whole report in a folder: ``index.html`` alone is complete; ``report.md`` has its pictures beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from edgepeft.bench.report.inputs import ReportInputs, read_inputs
from edgepeft.bench.report.page import page
from edgepeft.bench.report.pictures import Cell, Section, plain_svg
from edgepeft.bench.report.sections import sections
from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import DataError, MissingPackage

__all__ = ["build_report"]

_TITLE = "edgepeft: what was measured"


def build_report(paths: Sequence[Path], out: Path, *, force: bool = False) -> list[Section]:
    """Write the report; the sections that it has.

    Raises:
        MissingPackage: matplotlib is not installed.
        UsageError: no such file; the folder exists.
        DataError: a file that is no result, or holds nothing to show.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackage("a report's pictures need matplotlib: pip install 'edgepeft[train]'.")
    inputs = read_inputs(paths)
    listed = ", ".join(map(str, paths))
    made = sections(inputs)
    if not made:
        raise DataError(f"nothing was measured in {listed}; there is nothing to report.")
    try:
        files = {"index.html": page(_TITLE, made, inputs.names).encode(), "report.md": _markdown(made, inputs).encode()}
        files |= {f"pictures/{one.key}.svg": plain_svg(one) for one in made if one.draw is not None}
    except (ArithmeticError, ValueError) as error:
        raise DataError(
            f"a figure in {listed} is too large or too small to be drawn ({error}). Measure again, or leave it out."
        ) from error
    with new_folder(out, force=force) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    return made


def _markdown(made: Sequence[Section], inputs: ReportInputs) -> str:
    lines = [f"# {_TITLE}", ""]
    for one in made:
        lines += [f"## {_plain(one.title)}", "", _plain(one.text), ""]
        if one.draw is not None:
            lines += [f"![{_plain(one.title)}](pictures/{one.key}.svg)", ""]
        lines += [f"- {_plain(note)}" for note in one.notes] + ([""] if one.notes else [])
        lines += [_row(one.header), "|" + "---|" * len(one.header), *(_row(row) for row in one.rows), ""]
    return "\n".join([*lines, "From " + ", ".join(map(_plain, inputs.names)) + ".", ""])


def _row(cells: Sequence[Cell]) -> str:
    shown = (f"{cell:,}" if isinstance(cell, (int, float)) else cell or "-" for cell in cells)
    return "| " + " | ".join(map(_plain, shown)) + " |"


def _plain(text: str) -> str:
    """Names from a file must not become markup."""
    return " ".join("".join(f"\\{c}" if c in "\\`*_<>|[]" else c for c in text).split())

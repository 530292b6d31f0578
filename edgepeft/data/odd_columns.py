"""What may be wrong with a file in which columns that are needed are not found: how it is divided, nested or headed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_BITS = {"0", "1", "0.0", "1.0", "true", "false"}
_SHOWN = 5  # columns within a column


def odd_columns(suffix: str, head: Sequence[Mapping[str, Any]]) -> str:
    """Say by a file's first rows what may be wrong with its columns, of which some are not known; else nothing."""
    told, found = "", head[0] if head else {}
    if nested := {name: cell for name, cell in found.items() if isinstance(cell, Mapping)}:
        inner = "; ".join(f"{name} has {', '.join(map(str, [*cell][:_SHOWN]))}" for name, cell in nested.items())
        told = f" Columns within a column are not read ({inner}): write them beside the others."
    cells = {name: {str(row.get(name)).lower() for row in head} - {"", "none"} for name in found}
    bits = [name for name, values in cells.items() if values and values <= _BITS]
    if len(bits) > 1:
        told += (
            f" If {', '.join(bits)} are labels: such columns are read where nothing but the text and an id (id, index, "
            "..._id) stands beside them, and each of their cells is 0 or 1."
        )
    return told + _odd_header(suffix, found)


def _odd_header(suffix: str, found: Collection[str]) -> str:
    right = {".csv": "commas", ".tsv": "tabs"}.get(suffix.lower())
    if right is None or not found:
        return ""
    if len(found) > 1:
        odd = any(name.isdigit() or len(name.split()) > 3 for name in found)
        put = "put one with names above the rows if there is none"
        return f" The first line is read as the names of columns: {put}." if odd else ""
    marks = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
    used = next((name for mark, name in marks.items() if mark in next(iter(found)) and name != right), None)
    found_out = "The table has one column alone" if used is None else f"The one column looks like several, with {used}"
    return f" {found_out}; a {suffix.lower()[1:]} separates them by {right}."

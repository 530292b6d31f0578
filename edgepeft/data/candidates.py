"""A row's candidates, of which one is picked: a list of texts, or a column for each.

The column is ``candidates``; a table's cell holds the list as JSON.  Where there is none, columns that are numbered are
taken in the order of their numbers, as COPA's and SWAG's files have them: ``choice1``, ``choice2``; ``ending0``, ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgepeft.common.errors import DataError
from edgepeft.data.labels import shown
from edgepeft.data.pattern import UnreadableRow

__all__ = ["CANDIDATES", "candidates_in", "distinct_candidates"]

CANDIDATES = "candidates"
_NUMBERED = re.compile(r"(candidate|choice|ending|option|answer)[ _]?(\d{1,4})", re.ASCII)
_LEAST = 2


def candidates_in(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Those of a file's row; none where it has no such column.

    Raises:
        DataError: as ``distinct_candidates``, or columns of several names.
    """
    if CANDIDATES in record:
        return distinct_candidates(_list(record[CANDIDATES]), where)
    found: dict[str, list[tuple[int, Any]]] = {}
    for name, value in record.items():
        if (match := _NUMBERED.fullmatch(name)) is not None:
            found.setdefault(match[1], []).append((int(match[2]), value))
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise DataError(f"{where}: numbered columns of several names ({names}); put the candidates into one list.")
    numbered = [value for values in found.values() for _, value in sorted(values, key=lambda each: each[0])]
    while numbered and numbered[-1] in (None, ""):  # a table's rows have as many cells as its longest one
        numbered.pop()
    return distinct_candidates(numbered, where) if found else ()


def distinct_candidates(value: Any, where: str) -> tuple[str, ...]:
    """Two texts at least, all different.

    Raises:
        UnreadableRow: something else.
    """
    if not isinstance(value, list | tuple):
        raise UnreadableRow(f"{where}: {CANDIDATES} is a list of texts; found {shown(value)}.")
    for place, text in enumerate(value):
        if not isinstance(text, str) or not text.strip():
            raise UnreadableRow(f"{where}: candidate {place} must be a text that is not empty; found {shown(text)}.")
        if text.strip() in (other.strip() for other in value[:place]):
            raise UnreadableRow(f"{where}: the candidate {shown(text)} stands there twice; give each once.")
    if len(value) < _LEAST:
        held = "one candidate" if value else "no candidate"
        raise UnreadableRow(f"{where}: the row has {held}, and one is picked of two or more.")
    return tuple(value)


def _list(value: Any) -> Any:
    """What a table's cell holds."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value

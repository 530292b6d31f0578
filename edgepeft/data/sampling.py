"""Stratified parts of a data set that are the same on every machine, Python and library version.

The order is that of SHA-256 over a salt and the row's content: no generator whose stream a release may
change.  Equal rows are neighbours in it, so copies of a row hardly ever fall on both sides of a split.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgepeft.data.rows import Row

__all__ = ["DrawnRows", "part", "quotas", "row_digest"]


class DrawnRows(NamedTuple):
    """Rows taken and rows left, each in the order of the file."""

    taken: tuple[Row, ...]
    left: tuple[Row, ...]


def part(
    rows: Sequence[Row], n: int, salt: str, *, strata: Sequence[str] | None, least: int = 0, spare: int = 0
) -> DrawnRows:
    """Take ``n`` rows, in proportion from the rows of every one of ``strata`` (each row's; None: all are of one).

    Every stratum gives at least ``least`` rows and keeps at least ``spare``.
    """
    members_of: dict[str, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: row_digest(rows[index], salt)):
        members_of.setdefault("" if strata is None else strata[index], []).append(index)
    wanted = quotas({label: len(members) for label, members in members_of.items()}, n, least=least, spare=spare)
    taken = {index for label, members in members_of.items() for index in members[: wanted[label]]}
    return DrawnRows(
        tuple(row for index, row in enumerate(rows) if index in taken),
        tuple(row for index, row in enumerate(rows) if index not in taken),
    )


def quotas(sizes: Mapping[str, int], n: int, *, least: int = 0, spare: int = 0) -> dict[str, int]:
    """``n`` shared in proportion to ``sizes``: one by one to whom most is due; less if there are not so many."""
    total = sum(sizes.values())
    room = {label: max(0, size - spare) for label, size in sizes.items()}
    given = {label: min(least, room[label]) for label in sizes}
    due = [(given[label] - size * n / total, label) for label, size in sizes.items() if given[label] < room[label]]
    heapq.heapify(due)
    for _ in range(min(n, sum(room.values())) - sum(given.values())):
        _, neediest = heapq.heappop(due)
        given[neediest] += 1
        if given[neediest] < room[neediest]:
            heapq.heappush(due, (given[neediest] - sizes[neediest] * n / total, neediest))
    return given


def row_digest(row: Row, salt: str = "") -> bytes:
    """SHA-256 of the salt and the row's content, not of where it stands."""
    content = "\0".join((salt, row.sentence1, row.sentence2 or "", row.label or "", *row.candidates))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()

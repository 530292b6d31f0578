"""Draw rows from others: held out for a part that has no file, or a few to train on.

The same on every machine, Python and library version: the order of rows is that of SHA-256 over a salt and the row's
content, no generator whose stream a release may change.  Equal rows are neighbours in it, so copies of a row hardly
ever fall on both sides of a split.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.rows import Row
from edgepeft.tasks.base import TaskType

HELD_OUT = 0.1  # of the training file, for each part without a file or a share of its own


class Part(NamedTuple):
    """Rows, and where they are from."""

    rows: tuple[Row, ...]
    origin: str


def held_out(
    rows: tuple[Row, ...], given: Sequence[Row] | float | None, name: str, n_all: int, kind: TaskType
) -> tuple[tuple[Row, ...], Part]:
    """Return what is left to train on, and the part called ``name``: as given, or the asked share of all rows."""
    if given is not None and not isinstance(given, float):
        return rows, Part(tuple(given), f"{len(given)} rows of {file_name(given)}")
    if given is not None and not 0 < given < 1:
        raise UsageError(f"--{name} {given:g}: a share to hold out lies between 0 and 1, such as 0.2 or 20%.")
    n = max(1, round((given or HELD_OUT) * n_all))
    taken, left = part(rows, n, f"held out: {name}", strata=kind.strata(rows), spare=1)
    if given is not None and len(taken) < n:
        raise UsageError(
            f"--{name} {given:g} of {n_all} rows is {n}, and {len(taken)} can be held out: a row of every label stays "
            "to train on. Give smaller shares, or more rows."
        )
    if not taken:
        lack = "no label has a row more than the one that stays to train on" if kind.one_label else "too few to share"
        raise DataError(
            f"{rows[0].file} has {n_all} rows, and none can be held out for {name}: {lack}. "
            "Give files for --eval and --test, or more rows."
        )
    return left, Part(taken, f"{len(taken)} rows held out of {file_name(rows)}")


def few_shot_part(rows: tuple[Row, ...], n: int, seed: int, kind: TaskType) -> Part:
    """Draw ``n`` of the rows that can train by the seed, at least one of every label."""
    strata = kind.strata(rows)
    least = kind.n_outputs if kind.one_label else len(set(strata))
    if n < least:
        raise UsageError(f"--few-shot {n} is fewer than {least}; give at least one row, and one of every label.")
    if n > len(rows):
        raise UsageError(f"--few-shot {n} is more than the {len(rows)} rows of {rows[0].file} that can train.")
    taken, _ = part(rows, n, f"few-shot {seed}", strata=strata, least=1)
    return Part(taken, f"{n} of {len(rows)} rows of {file_name(rows)} (stratified, seed {seed})")


def file_name(rows: Sequence[Row]) -> str:
    """Return the name of the file that rows are from."""
    return Path(rows[0].file).name


def part(
    rows: Sequence[Row], n: int, salt: str, *, strata: Sequence[str], least: int = 0, spare: int = 0
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Take ``n`` rows, in proportion from the rows of every one of ``strata`` (each row's); return them and the others.

    Every stratum gives at least ``least`` rows and keeps at least ``spare``.  Both are in the order of the file.
    """
    members_of: dict[str, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: row_digest(rows[index], salt)):
        members_of.setdefault(strata[index], []).append(index)
    wanted = quotas({label: len(members) for label, members in members_of.items()}, n, least=least, spare=spare)
    taken = {index for label, members in members_of.items() for index in members[: wanted[label]]}
    left = tuple(row for index, row in enumerate(rows) if index not in taken)
    return tuple(rows[index] for index in sorted(taken)), left


def quotas(sizes: Mapping[str, int], n: int, *, least: int = 0, spare: int = 0) -> dict[str, int]:
    """Share ``n`` in proportion to ``sizes``, one by one to whom most is due; less if there are not so many."""
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
    """Return SHA-256 of the salt and the row's content, not of where it stands."""
    content = "\0".join((salt, row.sentence1, row.sentence2 or "", row.label or "", *row.candidates))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
